"""The atlas as a short page, which Sphinx builds and GitHub shows: what stands out."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pytest_dtdispatch.atlas.model import (
    Atlas,
    AtlasRow,
    Outcome,
    count_ops,
)
from pytest_dtdispatch.atlas.op_kinds import kind_of
from pytest_dtdispatch.atlas.row_texts import (
    SHOWN_TIMES,
    by_miss,
    definitions,
    moves_of,
    ns_of,
    where_taken,
    with_counts,
)
from pytest_dtdispatch.core.forms import ATLAS_TITLE
from pytest_dtdispatch.core.measurement import State
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
from pytest_dtdispatch.report.measurements import SCALES
from pytest_dtdispatch.report.scales import Scale

MOST_EXPENSIVE = 10
FOLD_ABOVE = 20  # lines of a table
Units = Mapping[str, Scale]
CellOf = Callable[[AtlasRow], Cell]


def atlas_document(atlas: Atlas, whole: str) -> Document:
    """Say what ops cost, and which are not as one would think.

    Args:
        atlas: every row.
        whole: name of the page that has them all.
    """
    units = {title: SCALES[title] for title in SHOWN_TIMES}
    measured = atlas.of(Outcome.MEASURED)
    parts = {
        "By kind of op": _by_kind(atlas, units),
        "By mesh": _by_mesh(measured, units),
        "The most expensive misses": _most_expensive(measured, units),
        "Ops that never hit": _never_hit(measured, units),
        "Ops that redistribute silently": _moved(measured),
        "What torch does not support": _unsupported(atlas),
        "What was not measured": _other(atlas),
        "Where these figures were taken": where_taken(atlas),
    }
    titled = ((Heading(title), *blocks) for title, blocks in parts.items())
    return Document(tuple(itertools.chain(_head(atlas, measured, whole), *titled)))


def _head(atlas: Atlas, measured: Sequence[AtlasRow], whole: str) -> Iterator[Block]:
    yield Heading(ATLAS_TITLE, level=1)
    yield paragraph(
        f"What every op costs that DTensor has a rule for: {len(measured):,} signatures of "
        f"{count_ops(measured):,} ops, of {atlas.ops:,} ops in the registries of this torch."
    )
    yield Paragraph(
        spans(
            "All of them stand in ",
            Span(whole, Tone.CODE),
            ", a page to search, sort and filter. Here is what stands out.",
        )
    )
    yield definitions()
    command = Span("dtdispatch atlas --output atlas.md", Tone.CODE)
    yield Paragraph(
        spans(
            "The figures are of one machine and one day. ",
            command,
            " takes yours, and writes both pages and the data; ",
            Span("dtdispatch atlas-versions", Tone.CODE),
            " compares those of several versions of torch.",
        )
    )


def _by_kind(atlas: Atlas, units: Units) -> Iterator[Block]:
    yield paragraph(
        "Signatures of each kind, their medians, and how many of them are not as one would think."
    )
    shown = {title: units[title] for title in ("miss", "hit")}
    kinds: dict[str, list[AtlasRow]] = {}
    for row in atlas.rows:
        kinds.setdefault(kind_of(row.op), []).append(row)
    lines = [Line(kind, _summed(rows, shown)) for kind, rows in sorted(kinds.items())]
    counts = map(Column, ("redistribute", "never hit", "unsupported"))
    times = (Column(title, unit.name) for title, unit in shown.items())
    columns = (Column("ops"), Column("signatures"), *times, *counts)
    yield Table(columns, (Group("", tuple(lines)),), "kind", "", label_tone=Tone.PLAIN)


def _summed(rows: Sequence[AtlasRow], units: Units) -> tuple[Cell, ...]:
    medians = (unit.text(_median(rows, title)) for title, unit in units.items())
    counts = (
        sum(bool(row.moves) for row in rows),
        sum(bool(row.why_no_hit) for row in rows),
        sum(row.outcome is Outcome.UNSUPPORTED for row in rows),
    )
    return (f"{count_ops(rows):,}", f"{len(rows):,}", *medians, *(f"{count:,}" for count in counts))


def _median(rows: Iterable[AtlasRow], title: str) -> float | None:
    known = [ns for row in rows if (ns := ns_of(row, title)) is not None]
    return statistics.median(known) if known else None


def _by_mesh(measured: Sequence[AtlasRow], units: Units) -> Iterator[Block]:
    yield paragraph("Medians over all signatures, and over those that have a local row.")
    lines = []
    for mesh in _meshes(measured):
        rows = [row for row in measured if row.mesh == mesh]
        cells = [f"{len(rows):,}"]
        cells += [unit.text(_median(rows, title)) for title, unit in units.items()]
        lines.append(Line(mesh, tuple(cells)))
    columns = (Column("signatures"), *(Column(title, unit.name) for title, unit in units.items()))
    yield Table(columns, (Group("", tuple(lines)),), "mesh", "", label_tone=Tone.PLAIN)


def _most_expensive(measured: Sequence[AtlasRow], units: Units) -> Iterator[Block]:
    yield paragraph(
        "Each op by its most expensive signature on this mesh, of the misses that a second visit confirmed."
    )
    shown = {title: units[title] for title in ("miss", "hit", "cold", "local")}
    others = {"propagations": _propagations, "redistributes": moves_of}
    confirmed = [row for row in by_miss(measured) if ns_of(row, "miss") and State.MISS not in row.unconfirmed]
    for mesh in _meshes(confirmed):
        dearest: dict[str, AtlasRow] = {}
        for row in confirmed:
            if row.mesh == mesh:
                dearest.setdefault(row.op, row)
        yield paragraph(f"On mesh {mesh}:")
        yield _table(list(dearest.values())[:MOST_EXPENSIVE], shown, others)


def _never_hit(measured: Sequence[AtlasRow], units: Units) -> Iterator[Block]:
    rows = [row for row in measured if row.why_no_hit]
    if rows:
        shown = {title: units[title] for title in ("miss", "hit")}
        yield _folded(rows, shown, {"why": lambda row: row.why_no_hit})
    else:
        none = "None: every signature that was measured was answered by a cache when it was called again."
        yield paragraph(none)


def _moved(measured: Sequence[AtlasRow]) -> Iterator[Block]:
    rows = [row for row in measured if row.moves]
    yield paragraph(
        f"{len(rows):,} signatures of {count_ops(rows):,} ops move a tensor from one placement to another "
        "before they compute, without a word. Each op by the signature that moves most:"
    )
    yield _by_op(rows, {"what, from, to": moves_of, "collectives": _collectives}, lambda row: -len(row.moves))


def _unsupported(atlas: Atlas) -> Iterator[Block]:
    rows = atlas.of(Outcome.UNSUPPORTED)
    yield paragraph(
        f"{len(rows):,} signatures of {count_ops(rows):,} ops run on plain tensors of the same global "
        "shapes, and raise on DTensors that lie like this. The messages are torch's own, their first lines; "
        "each op by its first signature:"
    )
    yield _by_op(rows, {"message": lambda row: row.message})


def _other(atlas: Atlas) -> Iterator[Block]:
    others = (Outcome.NOT_REPEATED, Outcome.SPLIT, Outcome.UNDEFINED, Outcome.NO_KERNEL, Outcome.NO_ARGUMENTS)
    rows = atlas.of(*others)
    yield paragraph(
        "An op that torch takes apart has no dispatch of its own: DTensor is asked for those it is made of. "
        "No arguments made: on none of those that were tried does the op run on plain tensors, which says "
        "nothing of DTensor."
    )
    counted = Counter(str(row.outcome) for row in rows)
    yield Bullets(tuple(f"{outcome}: {count:,}" for outcome, count in counted.items()) or ("None.",))


def _by_op(
    rows: Sequence[AtlasRow],
    others: Mapping[str, CellOf],
    order: Callable[[AtlasRow], int] = lambda row: 0,
) -> Block:
    """Give one row of each op, the first in an order; how many more it has stands beside it."""
    signatures = Counter(row.op for row in rows)
    first: dict[str, AtlasRow] = {}
    for row in sorted(rows, key=order):
        first.setdefault(row.op, row)
    shown = [first[op] for op in signatures]
    return _folded(shown, {}, {**others, "signatures": lambda row: f"{signatures[row.op]:,}"})


def _meshes(rows: Iterable[AtlasRow]) -> list[str]:
    return sorted({row.mesh for row in rows}, key=lambda mesh: (mesh.count("x"), mesh))


def _propagations(row: AtlasRow) -> str:
    return str(row.counts.propagations) if row.counts else "-"


def _collectives(row: AtlasRow) -> Cell:
    if not row.counts or not row.counts.collectives:
        return "none: a local slice"
    return with_counts(dict(row.counts.collectives), ", ")


def _folded(rows: Sequence[AtlasRow], units: Units, others: Mapping[str, CellOf]) -> Block:
    """Give a table, folded where it is long."""
    if not rows:
        return paragraph("None.")
    table = _table(rows, units, others)
    return table if len(rows) <= FOLD_ABOVE else Folded(f"All {len(rows):,}", (table,))


def _table(rows: Iterable[AtlasRow], units: Units, others: Mapping[str, CellOf]) -> Table:
    """Give a table of signatures: columns of times, and what other columns take of a row."""
    columns = (*(Column(title, unit.name) for title, unit in units.items()), *map(Column, others))
    lines = []
    for row in rows:
        times = (unit.text(ns_of(row, title)) for title, unit in units.items())
        lines.append(Line(row.signature, (*times, *(cell(row) for cell in others.values()))))
    return Table(columns, (Group("", tuple(lines)),), proof_title="")
