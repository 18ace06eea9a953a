"""Atlases of several versions as a short page: what each version changed, and where every op has a rule."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pytest_dtdispatch.atlas.atlas_file import AtlasEntry
from pytest_dtdispatch.atlas.changes import (
    HIT_FACTOR,
    MISS_FACTOR,
    MOST_CONTROL,
    AtlasComparison,
    Change,
    ChangeKind,
    VersionPair,
)
from pytest_dtdispatch.atlas.joining import JoinedRow, Version
from pytest_dtdispatch.atlas.model import Outcome
from pytest_dtdispatch.core.forms import ATLASES_TITLE
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Folded,
    Group,
    Heading,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    paragraph,
    spans,
)
from pytest_dtdispatch.report.scales import MICROSECONDS, MILLISECONDS, Scale

LARGEST = 5
MOST_NAMED = 40  # ops of one kind of change
Times = Callable[[AtlasEntry], Sequence[float]]
TIMED: Mapping[ChangeKind, tuple[Times, Scale]] = {
    ChangeKind.SLOWER_HIT: (lambda entry: entry.steady_ns, MICROSECONDS),
    ChangeKind.FASTER_HIT: (lambda entry: entry.steady_ns, MICROSECONDS),
    ChangeKind.SLOWER_MISS: (lambda entry: entry.miss_ns, MILLISECONDS),
    ChangeKind.FASTER_MISS: (lambda entry: entry.miss_ns, MILLISECONDS),
}


def changes_document(compared: AtlasComparison, whole: str, data: str) -> Document:
    """Say what each version changed.

    Args:
        compared: every row of every version.
        whole: name of the page that has them all.
        data: name of the file of JSON that has them all.
    """
    blocks = [*_head(compared, whole, data), Heading("The versions"), *_versions(compared)]
    for both in compared.neighbours:
        blocks += [Heading(f"{both.before.heading} to {both.after.heading}"), *_changes(both)]
    blocks += [Heading("Where each op has a rule"), *_rules(compared)]
    blocks += [Heading("What is called a change"), *definitions_of_changes()]
    blocks += [Heading("Where these figures were taken"), places(compared.versions)]
    return Document(tuple(blocks))


def _head(compared: AtlasComparison, whole: str, data: str) -> Iterator[Block]:
    first, last = compared.versions[0].heading, compared.versions[-1].heading
    ops = len({row.op for row in compared.rows})
    yield Heading(ATLASES_TITLE, level=1)
    yield paragraph(
        f"What became of {len(compared.rows):,} signatures of {ops:,} ops from torch {first} to {last}."
    )
    yield Paragraph(
        spans(
            "All of them stand in ",
            Span(whole, Tone.CODE),
            ", every version side by side, to search, sort and filter, and as data in ",
            Span(data, Tone.CODE),
            ". Here is what each version changed.",
        )
    )


def _versions(compared: AtlasComparison) -> Iterator[Block]:
    common = [row for row in compared.rows if _is_measured_everywhere(row)]
    yield paragraph(
        f"Counts of signatures, and medians over the {len(common):,} that have a miss and a hit on each."
    )
    titles = ("ops", "signatures", "measured", "redistribute", "never hit", "unsupported")
    lines = []
    for place, version in enumerate(compared.versions):
        rows = version.record.rows
        counts = (
            len(version.ops),
            len(rows),
            sum(row.outcome is Outcome.MEASURED for row in rows),
            sum(bool(row.moves) for row in rows),
            sum(bool(row.why_no_hit) for row in rows),
            sum(row.outcome is Outcome.UNSUPPORTED for row in rows),
        )
        medians = (
            MILLISECONDS.text(_median(common, place, lambda entry: entry.miss_ns)),
            MICROSECONDS.text(_median(common, place, lambda entry: entry.steady_ns)),
        )
        lines.append(Line(version.heading, (*(f"{count:,}" for count in counts), *medians)))
    columns = (*map(Column, titles), Column("miss", "ms"), Column("hit", "us"))
    yield Table(columns, (Group("", tuple(lines)),), "torch", "", label_tone=Tone.PLAIN)


def _is_measured_everywhere(row: JoinedRow) -> bool:
    return all(entry and entry.miss_ns and entry.steady_ns for entry in row.entries)


def _median(rows: Iterable[JoinedRow], place: int, times: Times) -> float | None:
    lowest = [times(entry)[0] for row in rows if (entry := row.entries[place])]
    return statistics.median(lowest) if lowest else None


def _changes(both: VersionPair) -> Iterator[Block]:
    if both.why_no_times:
        yield paragraph(f"Times are not compared: {both.why_no_times}.")
    else:
        yield paragraph(f"Plain tensors, the control of all times, shifted by {both.control:.2f}x.")
    by_kind = {
        kind: found
        for kind in ChangeKind
        if (found := [change for change in both.changes if change.kind is kind])
    }
    if not by_kind:
        yield paragraph("Nothing changed.")
        return
    lines = [Line(str(kind), (f"{len(_ops(found)):,}", f"{len(found):,}")) for kind, found in by_kind.items()]
    columns = (Column("ops"), Column("signatures"))
    yield Table(columns, (Group("", tuple(lines)),), "what changed", "", label_tone=Tone.PLAIN)
    for kind in TIMED:
        if kind in by_kind:
            which, _, what = kind.value.partition(" ")
            yield paragraph(f"By {what}, these became {which} most, each op once:")
            yield _largest(both, kind, by_kind[kind])
    named = {kind: found for kind, found in by_kind.items() if kind not in TIMED}
    if named:
        yield Folded("Which ops", (Bullets(tuple(_named(*each) for each in named.items())),))


def _largest(both: VersionPair, kind: ChangeKind, found: Sequence[Change]) -> Table:
    times, scale = TIMED[kind]
    first: dict[str, Change] = {}
    for change in sorted(found, key=lambda each: -max(each.factor, 1 / each.factor)):
        first.setdefault(change.row.op, change)
    lines = []
    for change in list(first.values())[:LARGEST]:
        ns = (times(entry)[0] for entry in both.both(change.row) if entry)
        factor = max(change.factor, 1 / change.factor)
        lines.append(Line(change.row.signature, (*map(scale.text, ns), f"{factor:.1f}x")))
    columns = (
        Column(both.before.heading, scale.name),
        Column(both.after.heading, scale.name),
        Column("slower" if kind.value.startswith("slower") else "faster"),
    )
    return Table(columns, (Group("", tuple(lines)),), proof_title="")


def _ops(found: Iterable[Change]) -> list[str]:
    return list(dict.fromkeys(change.row.op for change in found))


def _named(kind: ChangeKind, found: Sequence[Change]) -> Cell:
    ops = _ops(found)
    more = f" and {len(ops) - MOST_NAMED:,} more" if len(ops) > MOST_NAMED else ""
    return spans(f"{kind}: ", *_listed(ops[:MOST_NAMED]), more)


def _listed(ops: Iterable[str]) -> Iterator[str | Span]:
    for number, op in enumerate(ops):
        yield from ([", "] if number else [])
        yield Span(op, Tone.CODE)


def _rules(compared: AtlasComparison) -> Iterator[Block]:
    """List every op by the versions that have a rule for it, so that a search of the pages finds it."""
    yield paragraph(
        "An op without a rule is taken apart by torch, or raises. The search of this documentation finds "
        "every op here by its name."
    )
    by_versions: dict[tuple[bool, ...], list[str]] = {}
    for op in dict.fromkeys(row.op for row in compared.rows):
        by_versions.setdefault(tuple(op in version.ops for version in compared.versions), []).append(op)
    for have, ops in sorted(by_versions.items(), key=lambda each: (-sum(each[0]), each[0])):
        title = f"{many(len(ops), 'op')}: {_spans_of_versions(compared.versions, have)}"
        yield Folded(title, (Paragraph(spans(*_listed(ops))),))


def _spans_of_versions(versions: Sequence[Version], have: Sequence[bool]) -> str:
    """Write which versions have something: ``2.5.1 to 2.9.1, 2.11.0``."""
    if all(have):
        return "all versions"
    runs: list[list[str]] = []
    for place, version in enumerate(versions):
        if have[place] and place and have[place - 1]:
            runs[-1].append(version.heading)
        elif have[place]:
            runs.append([version.heading])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def definitions_of_changes() -> tuple[Block, ...]:
    """Say what is called a change, and what is not."""
    return (
        Bullets(
            (
                "Signatures are the same where op, mesh and text are; where only arguments that are no "
                "tensors differ, the row is joined too, and its change is called other arguments.",
                "Support, redistributions, propagations and hits are counted, not timed: any difference is "
                "a change. A signature that the atlas of one version alone has is none.",
                "A time changed where every visit of one version lies above every visit of the other, a "
                "second visit of each found about its lowest, the lowest differ by more than "
                f"{HIT_FACTOR:g}x (hits) or {MISS_FACTOR:g}x (misses), also after what plain tensors shifted "
                "by is taken off, those of all ops and those of this one, and the same holds of another "
                "signature of the op, or the counts of this one changed too. What is less is noise, and not "
                "listed.",
                "No time is compared where CPU, threads, Python or device differ, or where plain tensors "
                f"shifted by more than {MOST_CONTROL:g}x.",
                "A miss and a hit are what they are in the atlas of one version; an op that never asks the "
                "propagator has its latency as a hit. Each is the lowest median of the visits.",
            )
        ),
    )


def places(versions: Iterable[Version]) -> Bullets:
    """Say of each version where it was measured."""
    items = []
    for version in versions:
        record = version.record
        environment = record.environment
        facts = (
            f"torch {environment.torch_version}, {environment.cache_interface} caches",
            f"Python {record.python}",
            f"{record.cpu}, {record.cores} cores, torch on {environment.threads_text}",
            f"{environment.backend}, {environment.world_size} ranks, {environment.device}",
            record.date,
            f"at the end: {record.load}",
        )
        items.append("; ".join(facts))
    return Bullets(tuple(items))
