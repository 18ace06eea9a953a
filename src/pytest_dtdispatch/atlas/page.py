"""The atlas as a page, which Sphinx builds and GitHub shows."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pytest_dtdispatch.atlas.model import (
    MAX_VISITS,
    REPEAT,
    ROUNDS,
    VISITS,
    Atlas,
    AtlasRow,
    Outcome,
    count_ops,
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
from pytest_dtdispatch.report.measurements import SCALES, TIMES
from pytest_dtdispatch.report.scales import Scale

MOST_EXPENSIVE = 10
FOLD_ABOVE = 20  # lines of a table
TITLES = ("miss", "hit", "cold", "local", "overhead")  # columns of times, each in one unit
Units = Mapping[str, Scale]
CellOf = Callable[[AtlasRow], Cell]


def atlas_document(atlas: Atlas) -> Document:
    """Say what every op costs, and which are not as one would think."""
    units = {title: SCALES[title] for title in TITLES}
    measured = atlas.of(Outcome.MEASURED)
    parts = {
        "Where these figures were taken": _where(atlas),
        "By mesh": _by_mesh(measured, units),
        "The most expensive misses": _most_expensive(measured, units),
        "Ops that never hit": _never_hit(measured, units),
        "Ops that redistribute silently": _moved(measured),
        "What torch does not support": _unsupported(atlas),
        "What was not measured": _other(atlas),
        "Every signature": _everything(atlas, units),
    }
    titled = ((Heading(title), *blocks) for title, blocks in parts.items())
    return Document(tuple(itertools.chain(_head(atlas, measured), *titled)))


def _ns(row: AtlasRow, title: str) -> float | None:
    return TIMES[title](row.measurement) if row.measurement else None


def _head(atlas: Atlas, measured: Sequence[AtlasRow]) -> Iterator[Block]:
    yield Heading(ATLAS_TITLE, level=1)
    yield paragraph(
        f"What every op costs that DTensor has a rule for: {len(measured):,} signatures of "
        f"{count_ops(measured):,} ops, of {atlas.ops:,} ops in the registries of this torch."
    )
    definitions = (
        "A *miss* is the first call after the sharding caches were cleared, *cold* one after the caches "
        "that feed propagation were cleared too, a *hit* a later call, each proved by torch's cache "
        "counters; an op that never asks the propagator has its latency in the column of hits. *local* is "
        "the same op on the plain local shards, where that is one op, and *overhead* the hit less that. All "
        "are quietest blocks, and start below autograd. *propagations* counts those of one miss: the op's "
        "own, and those of the ops that torch makes it of where it has no rule of its own. *redistributes* "
        "says what the op moves though its caller did not ask for it. The collectives are fakes, which move "
        "nothing: what they cost on a network is not in these figures."
    )
    tones = itertools.cycle((Tone.PLAIN, Tone.STRONG))
    yield Paragraph(tuple(map(Span, definitions.split("*"), tones)))
    command = Span("dtdispatch atlas --output atlas.md", Tone.CODE)
    yield Paragraph(spans("The figures are of one machine and one day. ", command, " takes yours."))


def _where(atlas: Atlas) -> Iterator[Block]:
    environment = atlas.environment
    items: tuple[Cell, ...] = (
        f"CPU: {atlas.cpu}, {atlas.cores} cores, torch on {environment.threads_text}",
        f"torch {environment.torch_version}, build {environment.torch_build}, "
        f"{environment.cache_interface} caches; Python {atlas.python}",
        f"process group: {environment.backend}, {environment.world_size} ranks; device: {environment.device}",
        spans(f"{atlas.date}, ", Span(atlas.command, Tone.CODE)),
        f"each signature was visited {VISITS} times, more than a minute apart in a whole atlas, "
        f"and up to {MAX_VISITS} times where the visits disagreed: {ROUNDS} misses, "
        f"{ROUNDS} cold calls and {ROUNDS * REPEAT} hits a visit; of each state the "
        "visit is shown whose median is the lowest, as what else runs on a machine only ever adds; it is "
        "unconfirmed where no other visit came within 20 %",
        *_spreads(atlas),
    )
    yield Bullets(items)


def _spreads(atlas: Atlas) -> Iterator[str]:
    """Say how far the visits differ, so that nobody reads more into a figure than it holds."""
    for state in (State.MISS, State.HIT):
        spreads = [spread for row in atlas.rows if (spread := row.spread(state)) is not None]
        if len(spreads) > 1:
            deciles = statistics.quantiles(spreads, n=10, method="inclusive")
            yield (
                f"highest over lowest median of the visits, {state}: {deciles[4]:.2f} or less for one "
                f"signature in two, {deciles[8]:.2f} or less for nine in ten"
            )


def _by_mesh(measured: Sequence[AtlasRow], units: Units) -> Iterator[Block]:
    yield paragraph("Medians over all signatures, and over those that have a local row.")
    lines = []
    for mesh in _meshes(measured):
        rows = [row for row in measured if row.mesh == mesh]
        cells = [f"{len(rows):,}"]
        for title, unit in units.items():
            known = [ns for row in rows if (ns := _ns(row, title)) is not None]
            cells.append(unit.text(statistics.median(known) if known else None))
        lines.append(Line(mesh, tuple(cells)))
    columns = (Column("signatures"), *(Column(title, unit.name) for title, unit in units.items()))
    yield Table(columns, (Group("", tuple(lines)),), "mesh", "", label_tone=Tone.PLAIN)


def _most_expensive(measured: Sequence[AtlasRow], units: Units) -> Iterator[Block]:
    yield paragraph(
        "Each op by its most expensive signature on this mesh, of the misses that a second visit confirmed."
    )
    shown = {title: units[title] for title in ("miss", "hit", "cold", "local")}
    others = {"propagations": _propagations, "redistributes": _moves}
    confirmed = [row for row in _by_miss(measured) if _ns(row, "miss") and State.MISS not in row.unconfirmed]
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
        "before they compute, without a word."
    )
    yield _folded(rows, {}, {"what, from, to": _moves, "collectives": _collectives})


def _unsupported(atlas: Atlas) -> Iterator[Block]:
    rows = atlas.of(Outcome.UNSUPPORTED)
    yield paragraph(
        f"{len(rows):,} signatures of {count_ops(rows):,} ops run on plain tensors of the same global "
        "shapes, and raise on DTensors that lie like this. The messages are torch's own, their first lines."
    )
    yield _folded(rows, {}, {"message": lambda row: row.message})


def _other(atlas: Atlas) -> Iterator[Block]:
    rows = atlas.of(Outcome.NOT_REPEATED, Outcome.SPLIT, Outcome.NO_KERNEL, Outcome.NO_ARGUMENTS)
    yield paragraph(
        "An op that torch takes apart has no dispatch of its own: DTensor is asked for those it is made of. "
        "No arguments made: on none of those that were tried does the op run on plain tensors, which says "
        "nothing of DTensor."
    )
    yield _folded(rows, {}, {"outcome": lambda row: str(row.outcome), "why": lambda row: row.message})


def _everything(atlas: Atlas, units: Units) -> Iterator[Block]:
    yield paragraph("By the cost of a miss. In the built page a click on a column's title sorts by it.")
    others = {"propagations": _propagations, "redistributes": _moves, "note": _note}
    yield _table(_by_miss(atlas.rows), units, others)


def _by_miss(rows: Iterable[AtlasRow]) -> list[AtlasRow]:
    """Sort by the cost of a miss, the most expensive first, and what has none last."""
    return sorted(rows, key=lambda row: -(_ns(row, "miss") or 0.0))


def _meshes(rows: Iterable[AtlasRow]) -> list[str]:
    return sorted({row.mesh for row in rows}, key=lambda mesh: (mesh.count("x"), mesh))


def _note(row: AtlasRow) -> str:
    """Say why figures are missing, what the counters refused to prove, and what no second visit found."""
    if not row.measurement:
        return str(row.outcome)
    refused = [] if row.measurement.proof in ("proved", "unpropagated") else [row.measurement.proof]
    unconfirmed = ", ".join(row.unconfirmed)
    return "; ".join([*refused, *([f"unconfirmed: {unconfirmed}"] if unconfirmed else [])])


def _propagations(row: AtlasRow) -> str:
    return str(row.counts.propagations) if row.counts else "-"


def _moves(row: AtlasRow) -> Cell:
    return _with_counts(Counter(row.moves), "; ") or "-"


def _collectives(row: AtlasRow) -> Cell:
    if not row.counts or not row.counts.collectives:
        return "none: a local slice"
    return _with_counts(dict(row.counts.collectives), ", ")


def _with_counts(counts: Mapping[str, int], separator: str) -> tuple[Span, ...]:
    """Write names as code, each with how often it is there where that is more than once."""
    listed = [
        spans(separator * (n > 0), Span(name, Tone.CODE), f" ({count}x)" * (count > 1))
        for n, (name, count) in enumerate(counts.items())
    ]
    return tuple(itertools.chain.from_iterable(listed))


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
        times = (unit.text(_ns(row, title)) for title, unit in units.items())
        lines.append(Line(row.signature, (*times, *(cell(row) for cell in others.values()))))
    return Table(columns, (Group("", tuple(lines)),), proof_title="")
