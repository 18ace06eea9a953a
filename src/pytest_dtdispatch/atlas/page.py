"""The atlas as a page of Markdown, which Sphinx builds and GitHub shows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow, Move, Outcome, count_ops
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.report.units import Unit, column_unit

MOST_EXPENSIVE = 10
FOLD_ABOVE = 20  # lines of a table
MARKUP = re.compile(r"([\\`*_\[\]<>|#$~&{}!])")


@dataclass(frozen=True)
class TimeColumn:
    """A column of times, all in one unit.

    Args:
        title: what it shows.
        value_ns: finds the time of a row, in nanoseconds.
        unit: of every cell.
    """

    title: str
    value_ns: Callable[[AtlasRow], float | None]
    unit: Unit

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit.name}"

    def cell(self, row: AtlasRow) -> str:
        """Write the time of a row."""
        return self.unit.text(self.value_ns(row))


def atlas_page(atlas: Atlas) -> str:
    """Write the atlas as a page."""
    columns = _time_columns(atlas.rows)
    sections = (
        _head(atlas),
        _where(atlas),
        _by_mesh(atlas, columns),
        _most_expensive(atlas, columns),
        _never_hit(atlas, columns),
        _moved(atlas),
        _unsupported(atlas),
        _other(atlas),
        _everything(atlas, columns),
    )
    return "\n\n".join(text for section in sections for text in section) + "\n"


def code(text: str) -> str:
    r"""Write a text as code in a cell of a table.

    Example:
        >>> code("a|b")
        '`a\\|b`'
    """
    return escaped(text) if "`" in text else f"`{text}`".replace("|", "\\|")


def escaped(text: str) -> str:
    r"""Write a text, such as a message of torch's, so that none of it is markup.

    Example:
        >>> escaped("no rule for <x> | y")
        'no rule for \\<x\\> \\| y'
    """
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def _time_columns(rows: Sequence[AtlasRow]) -> dict[str, TimeColumn]:
    values: dict[str, Callable[[AtlasRow], float | None]] = {
        "miss": lambda row: row.median_ns(State.MISS),
        "hit": lambda row: row.steady_ns,
        "cold": lambda row: row.median_ns(State.COLD),
        "local": lambda row: row.median_ns(State.LOCAL),
        "overhead": lambda row: row.overhead_ns,
    }
    return {title: TimeColumn(title, value, column_unit(map(value, rows))) for title, value in values.items()}


def _head(atlas: Atlas) -> Iterator[str]:
    measured = atlas.of(Outcome.MEASURED)
    yield "# Atlas of ops"
    yield (
        f"What every op costs that DTensor has a rule for: {len(measured):,} signatures of "
        f"{count_ops(measured):,} ops, of {atlas.ops:,} ops in the registries of this torch."
    )
    yield (
        "A **miss** is the first call after the sharding caches were cleared, **cold** one after the caches "
        "that feed propagation were cleared too, a **hit** a later call, each proved by torch's cache "
        "counters; an op that never asks the propagator has its latency in the column of hits. **local** is "
        "the same op on the plain local shards, where that is one op, and **overhead** the hit less that. "
        "All are medians, and start below autograd. **propagations** counts those of one miss: the op's own, "
        "and those of the ops that torch makes it of where it has no rule of its own. **redistributes** says "
        "what the op moves though its caller did not ask for it. The collectives are fakes, which move "
        "nothing: what they cost on a network is not in these figures."
    )
    yield "The figures are of one machine and one day. `dtdispatch atlas --output atlas.md` takes yours."


def _where(atlas: Atlas) -> Iterator[str]:
    environment = atlas.environment
    threads = "1 thread" if environment.threads == 1 else f"{environment.threads} threads"
    yield "## Where these figures were taken"
    yield "\n".join(
        (
            f"* CPU: {escaped(atlas.cpu)}, {atlas.cores} cores, torch on {threads}",
            f"* torch {escaped(environment.torch_version)}, build {escaped(environment.torch_build)}, "
            f"{environment.cache_interface} caches; Python {escaped(atlas.python)}",
            f"* process group: {environment.backend}, {environment.world_size} ranks; "
            f"device: {environment.device}",
            f"* {atlas.date}, {code(atlas.command)}",
            f"* each signature was visited {atlas.visits} times, more than a minute apart in a whole atlas, "
            f"and up to {atlas.max_visits} times where the visits disagreed: {atlas.rounds} misses, "
            f"{atlas.rounds} cold calls and {atlas.rounds * atlas.repeat} hits a visit; of each state the "
            "visit is shown whose median is the lowest, as what else runs on a machine only ever adds; it is "
            "unconfirmed where no other visit came within 20 %",
            *_spreads(atlas),
        )
    )


def _spreads(atlas: Atlas) -> Iterator[str]:
    """Say how far the visits differ, so that nobody reads more into a figure than it holds."""
    for state in (State.MISS, State.HIT):
        spreads = [spread for row in atlas.rows if (spread := row.spread(state)) is not None]
        if len(spreads) > 1:
            deciles = statistics.quantiles(spreads, n=10, method="inclusive")
            yield (
                f"* highest over lowest median of the visits, {state}: {deciles[4]:.2f} or less for one "
                f"signature in two, {deciles[8]:.2f} or less for nine in ten"
            )


def _by_mesh(atlas: Atlas, columns: dict[str, TimeColumn]) -> Iterator[str]:
    measured = atlas.of(Outcome.MEASURED)
    yield "## By mesh"
    yield "Medians over all signatures, and over those that have a local row."
    lines = []
    for mesh in _meshes(measured):
        rows = [row for row in measured if row.mesh == mesh]
        times = [_median_text(column, rows) for column in columns.values()]
        lines.append([mesh, f"{len(rows):,}", *times])
    yield _table(["mesh", "signatures", *(column.head for column in columns.values())], lines)


def _most_expensive(atlas: Atlas, columns: dict[str, TimeColumn]) -> Iterator[str]:
    measured = [
        row
        for row in atlas.of(Outcome.MEASURED)
        if row.median_ns(State.MISS) is not None and State.MISS not in row.unconfirmed
    ]
    yield "## The most expensive misses"
    yield "Each op by its most expensive signature on this mesh, of the misses that a second visit confirmed."
    shown = [columns[title] for title in ("miss", "hit", "cold", "local")]
    for mesh in _meshes(measured):
        dearest: dict[str, AtlasRow] = {}
        for row in _by_miss(row for row in measured if row.mesh == mesh):
            dearest.setdefault(row.op, row)
        lines = [
            [code(row.signature), *(column.cell(row) for column in shown), _propagations(row), _moves(row)]
            for row in list(dearest.values())[:MOST_EXPENSIVE]
        ]
        yield f"On mesh {mesh}:"
        yield _table(
            ["signature", *(column.head for column in shown), "propagations", "redistributes"], lines
        )


def _never_hit(atlas: Atlas, columns: dict[str, TimeColumn]) -> Iterator[str]:
    rows = [row for row in atlas.of(Outcome.MEASURED) if row.why_no_hit]
    yield "## Ops that never hit"
    if not rows:
        yield "None: every signature that was measured was answered by a cache when it was called again."
        return
    shown = [columns["miss"], columns["hit"]]
    lines = [
        [code(row.signature), *(column.cell(row) for column in shown), escaped(row.why_no_hit)]
        for row in rows
    ]
    yield from _folded(["signature", *(column.head for column in shown), "why"], lines)


def _moved(atlas: Atlas) -> Iterator[str]:
    rows = [row for row in atlas.of(Outcome.MEASURED) if row.moves]
    yield "## Ops that redistribute silently"
    yield (
        f"{len(rows):,} signatures of {count_ops(rows):,} ops move a tensor from one placement to another "
        "before they compute, without a word."
    )
    lines = [[code(row.signature), _moves(row), _collectives(row)] for row in rows]
    yield from _folded(["signature", "what, from, to", "collectives"], lines)


def _unsupported(atlas: Atlas) -> Iterator[str]:
    rows = atlas.of(Outcome.UNSUPPORTED)
    yield "## What torch does not support"
    yield (
        f"{len(rows):,} signatures of {count_ops(rows):,} ops run on plain tensors of the same global "
        "shapes, and raise on DTensors that lie like this. The messages are torch's own, their first lines."
    )
    lines = [[code(row.signature), escaped(row.message)] for row in rows]
    yield from _folded(["signature", "message"], lines)


def _other(atlas: Atlas) -> Iterator[str]:
    yield "## What was not measured"
    rows = atlas.of(Outcome.NOT_REPEATED, Outcome.SPLIT, Outcome.NO_KERNEL, Outcome.NO_ARGUMENTS)
    yield (
        "An op that torch takes apart has no dispatch of its own: DTensor is asked for those it is made of. "
        "No arguments made: on none of those that were tried does the op run on plain tensors, which says "
        "nothing of DTensor."
    )
    lines = [[code(row.signature), str(row.outcome), escaped(row.message)] for row in rows]
    yield from _folded(["signature", "outcome", "why"], lines)


def _everything(atlas: Atlas, columns: dict[str, TimeColumn]) -> Iterator[str]:
    yield "## Every signature"
    yield "By the cost of a miss. In the built page a click on a column's title sorts by it."
    titles = ["signature", *(column.head for column in columns.values())]
    lines = [
        [
            code(row.signature),
            *(column.cell(row) for column in columns.values()),
            _propagations(row),
            _moves(row),
            _note(row),
        ]
        for row in _by_miss(atlas.rows)
    ]
    yield _table([*titles, "propagations", "redistributes", "note"], lines)


def _by_miss(rows: Iterable[AtlasRow]) -> list[AtlasRow]:
    """Sort by the cost of a miss, the most expensive first, and what has none last."""
    return sorted(rows, key=lambda row: -(row.median_ns(State.MISS) or 0.0))


def _meshes(rows: Iterable[AtlasRow]) -> list[str]:
    return sorted({row.mesh for row in rows}, key=lambda mesh: (mesh.count("x"), mesh))


def _median_text(column: TimeColumn, rows: Sequence[AtlasRow]) -> str:
    values = [value for row in rows if (value := column.value_ns(row)) is not None]
    return column.unit.text(statistics.median(values) if values else None)


def _note(row: AtlasRow) -> str:
    """Say why figures are missing, what the counters refused to prove, and what no second visit found."""
    if not row.measurement:
        return str(row.outcome)
    refused = [] if row.measurement.proof in ("proved", "unpropagated") else [escaped(row.measurement.proof)]
    unconfirmed = ", ".join(row.unconfirmed)
    return "; ".join([*refused, *([f"unconfirmed: {unconfirmed}"] if unconfirmed else [])])


def _propagations(row: AtlasRow) -> str:
    return str(row.counts.propagations) if row.counts else "-"


def _moves(row: AtlasRow) -> str:
    return "; ".join(f"{code(text)}{count}" for text, count in _counted(row.moves)) or "-"


def _counted(moves: Sequence[Move]) -> Iterator[tuple[str, str]]:
    texts = [str(move) for move in moves]
    for text in dict.fromkeys(texts):
        count = texts.count(text)
        yield text, "" if count == 1 else f" ({count}x)"


def _collectives(row: AtlasRow) -> str:
    if not row.counts or not row.counts.collectives:
        return "none: a local slice"
    return ", ".join(
        code(kind) if count == 1 else f"{code(kind)} ({count}x)" for kind, count in row.counts.collectives
    )


def _folded(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give a table, folded where it is long."""
    if len(lines) <= FOLD_ABOVE:
        yield _table(titles, lines) if lines else "None."
        return
    yield f"<details>\n<summary>All {len(lines):,}</summary>"
    yield _table(titles, lines)
    yield "</details>"


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table, its columns of numbers to the right."""
    rules = ["--:" if _is_number(titles[i], lines, i) else "---" for i in range(len(titles))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *lines))


def _is_number(title: str, lines: Sequence[Sequence[str]], index: int) -> bool:
    cells = [line[index] for line in lines if line[index] != "-"]
    return title != "mesh" and bool(cells) and all(re.fullmatch(r"-?[\d,.]+", cell) for cell in cells)
