"""An atlas as a file of JSON: for other programs, and to compare it with those of other versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow, Outcome
from pytest_dtdispatch.core.environment import Environment
from pytest_dtdispatch.core.forms import ATLAS_FORMAT
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.plain_data import TYPE, decode, encode
from pytest_dtdispatch.core.saved_file import read_saved

VERSION = 1  # of the format
LONGEST_TEXT = 10_000  # letters
LONGEST_NS = 1e18


@dataclass(frozen=True)
class AtlasEntry:
    """One row of an atlas, as its file has it.

    Args:
        op: the op overload.
        signature: as text; the op where no arguments were made.
        outcome: what came of it.
        mesh: mesh and device as text; empty where no arguments were made.
        message: why there are no figures.
        why_no_hit: why a measured signature has no hit.
        visits_ns: of each state the median of every visit, in nanoseconds, the lowest first.
        propagations: how many one miss takes; None where that was not counted.
        moves: redistributions that nobody asked for, in order.
        collectives: how many of each kind a miss starts.
    """

    op: str
    signature: str
    outcome: Outcome
    mesh: str = ""
    message: str = ""
    why_no_hit: str = ""
    visits_ns: Mapping[State, tuple[float, ...]] = field(default_factory=dict)
    propagations: int | None = None
    moves: tuple[str, ...] = ()
    collectives: Mapping[str, int] = field(default_factory=dict)

    @property
    def miss_ns(self) -> tuple[float, ...]:
        """Medians of misses, one a visit."""
        return self.visits_ns.get(State.MISS, ())

    @property
    def steady_ns(self) -> tuple[float, ...]:
        """Medians of hits; of calls where the op never asks the propagator."""
        return self.visits_ns.get(State.HIT) or self.visits_ns.get(State.CALL, ())


@dataclass(frozen=True)
class AtlasRecord:
    """An atlas, as its file has it: the rows, and where they were taken."""

    environment: Environment
    cpu: str
    cores: int
    python: str
    date: str
    command: str
    load: str
    rows: tuple[AtlasEntry, ...]


def record_of(atlas: Atlas) -> AtlasRecord:
    """Take of an atlas what its file keeps."""
    names = (each.name for each in fields(AtlasRecord) if each.name != "rows")
    return AtlasRecord(**{name: getattr(atlas, name) for name in names}, rows=tuple(map(_entry, atlas.rows)))


def _entry(row: AtlasRow) -> AtlasEntry:
    entry = AtlasEntry(row.op, row.signature, row.outcome, row.mesh, row.message, row.why_no_hit)
    by_state = {state: tuple(row.medians(state)) for state in State}
    entry = replace(entry, visits_ns={state: medians for state, medians in by_state.items() if medians})
    if row.counts is None:
        return entry
    counts = row.counts
    return replace(
        entry, propagations=counts.propagations, moves=counts.moves, collectives=dict(counts.collectives)
    )


def record_text(record: AtlasRecord) -> str:
    """Write an atlas as JSON, a row a line."""
    plain = encode(record)
    rows = [json.dumps(_shown(row)) for row in plain.pop("rows")]
    plain["environment"].pop(TYPE)
    plain.pop(TYPE)
    head = json.dumps({"format": ATLAS_FORMAT, "version": VERSION, **plain}, indent=1)
    return head.removesuffix("\n}") + ',\n "rows": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a row what is empty."""
    return {name: value for name, value in row.items() if name != TYPE and value not in ("", [], {}, None)}


def read_atlas(path: Path) -> AtlasRecord:
    """Read the file of an atlas, which may come from anywhere.

    Raises:
        ValueError: in one line, which file it is and what is wrong with it.
    """
    return read_saved(path, _read_members, "data of dtdispatch atlas")


def _read_members(members: Any) -> AtlasRecord:
    if not isinstance(members, dict) or members.get("format") != ATLAS_FORMAT:
        raise ValueError(f'it has no "format": "{ATLAS_FORMAT}"')
    if members.get("version") != VERSION:
        raise ValueError(f"version {members.get('version')!r:.20} of the format; this one reads {VERSION}")
    record: AtlasRecord = decode(AtlasRecord, members)
    if not record.rows:
        raise ValueError("it has no rows")
    seen = set()
    for number, row in enumerate(record.rows, 1):
        key = (row.op, row.signature, row.mesh)
        if key in seen:
            raise ValueError(f"row {number} is there twice")
        seen.add(key)
        _check(row, number)
    return record


def _check(row: AtlasEntry, number: int) -> None:
    texts = (row.op, row.signature, row.mesh, row.message, row.why_no_hit, *row.moves, *row.collectives)
    if max(map(len, texts)) > LONGEST_TEXT:
        raise ValueError(f"row {number} has a text of more than {LONGEST_TEXT:,} letters")
    for state, medians in row.visits_ns.items():
        if not medians or not all(0 < median < LONGEST_NS for median in medians):
            raise ValueError(f"row {number}, {state}: no times in nanoseconds")
