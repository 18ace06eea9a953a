"""Atlases of several versions of torch joined: the same signature on each of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from pytest_dtdispatch.atlas.atlas_file import AtlasEntry, AtlasRecord

T = TypeVar("T")
_Line = list[AtlasEntry | None]
_TENSOR = re.compile(r"\w+\[[\d,]*\]\w*")  # f32[8,8]S0, and not size=[8,8]
_FORMS: tuple[Callable[[AtlasRecord], str], ...] = (  # of a heading, the shortest first
    lambda record: record.environment.torch_version.partition("+")[0],
    lambda record: record.environment.torch_version,
    lambda record: f"{record.environment.torch_version}, {record.date}",
    lambda record: f"{record.environment.torch_version}, Python {record.python}",
)


@dataclass(frozen=True)
class Version:
    """The atlas of one version, under a heading that tells it from the others."""

    heading: str
    record: AtlasRecord

    @cached_property
    def ops(self) -> frozenset[str]:
        """Ops that have a rule on it."""
        return frozenset(row.op for row in self.record.rows)


@dataclass(frozen=True, eq=False)
class JoinedRow:
    """One signature on every version; it is itself alone, as a key too.

    Args:
        op: the op overload.
        mesh: mesh and device as text.
        entries: one for each version; None where that has no such row.
    """

    op: str
    mesh: str
    entries: tuple[AtlasEntry | None, ...]

    @property
    def signature(self) -> str:
        """The signature, as the newest version writes it that has it."""
        return next(entry.signature for entry in reversed(self.entries) if entry)


def merged(records: Iterable[AtlasRecord]) -> tuple[AtlasRecord, ...]:
    """Make one atlas of those of the same torch and Python on the same machine, with the visits of all.

    A neighbour on the machine that slows every visit of one seldom slows those of another, taken later.
    """
    alike: dict[tuple[object, ...], list[AtlasRecord]] = defaultdict(list)
    for record in records:
        alike[record.environment, record.cpu, record.python].append(record)
    return tuple(_merge(takings) if len(takings) > 1 else takings[0] for takings in alike.values())


def _merge(takings: Sequence[AtlasRecord]) -> AtlasRecord:
    rows: dict[tuple[str, ...], AtlasEntry] = {}
    for entry in (entry for taking in takings for entry in taking.rows):
        known = rows.setdefault(_key(entry), entry)
        if known is not entry:
            rows[_key(entry)] = _with_visits_of(known, entry)
    dates = dict.fromkeys(taking.date for taking in takings)
    loads = [taking.load for taking in takings]
    return replace(takings[0], date=", ".join(dates), load=", then ".join(loads), rows=tuple(rows.values()))


def _with_visits_of(known: AtlasEntry, other: AtlasEntry) -> AtlasEntry:
    """Give a row the visits of both; where only one has figures, it is that one."""
    if not (known.visits_ns and other.visits_ns):
        return known if known.visits_ns else other
    visits = {
        state: tuple(sorted((*known.visits_ns.get(state, ()), *other.visits_ns.get(state, ()))))
        for state in (*known.visits_ns, *other.visits_ns)
    }
    return replace(known, visits_ns=visits)


def in_order(records: Iterable[AtlasRecord]) -> tuple[Version, ...]:
    """Put atlases into the order of their versions, equal ones as they are given, and name each."""
    ordered = sorted(records, key=lambda record: _number(record.environment.torch_version))
    headings = [f"{record.environment.torch_version} ({n})" for n, record in enumerate(ordered, 1)]
    for form in reversed(_FORMS):
        told = [form(record) for record in ordered]
        often = Counter(told)
        headings = [text if often[text] == 1 else other for text, other in zip(told, headings, strict=True)]
    return tuple(map(Version, headings, ordered))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,18}", version.partition("+")[0]))


def joined(versions: Sequence[Version]) -> tuple[JoinedRow, ...]:
    """Join the rows of versions by op, signature and mesh, in the order of ops.

    A signature that a version does not have is joined to the only one of that op and mesh that has the same
    tensors there, and that nothing else is joined to: its other arguments are what a new schema changed.
    """
    lines: list[_Line] = []
    by_signature: dict[tuple[str, ...], _Line] = {}
    for place, version in enumerate(versions):
        left = []
        for entry in version.record.rows:
            line = by_signature.get(_key(entry))
            if line is None or line[place]:
                left.append(entry)
            else:
                line[place] = entry
        alike = _only_ones([line for line in lines if not line[place]], lambda line: _tensors(_newest(line)))
        own = _only_ones(left, _tensors)
        for entry in left:
            line = alike.get(_tensors(entry)) if _tensors(entry) in own else None
            if line is None:
                line = [None] * len(versions)
                lines.append(line)
            line[place] = entry
            by_signature[_key(entry)] = line
    rows = [JoinedRow(_newest(line).op, _newest(line).mesh, tuple(line)) for line in lines]
    return tuple(sorted(rows, key=lambda row: row.op))


def _key(entry: AtlasEntry) -> tuple[str, ...]:
    return entry.op, entry.mesh, entry.signature


def _tensors(entry: AtlasEntry) -> tuple[str, ...]:
    return entry.op, entry.mesh, *_TENSOR.findall(entry.signature)


def _newest(line: Sequence[AtlasEntry | None]) -> AtlasEntry:
    return next(entry for entry in reversed(line) if entry)


def _only_ones(every: Iterable[T], key_of: Callable[[T], tuple[str, ...]]) -> dict[tuple[str, ...], T]:
    """Give by its key what no other has the key of."""
    found: dict[tuple[str, ...], list[T]] = defaultdict(list)
    for one in every:
        found[key_of(one)].append(one)
    return {key: of_key[0] for key, of_key in found.items() if len(of_key) == 1}
