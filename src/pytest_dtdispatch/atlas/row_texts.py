"""What both pages of the atlas say of a row, and of where it was taken."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pytest_dtdispatch.atlas.model import MAX_VISITS, REPEAT, ROUNDS, VISITS, Atlas, AtlasRow
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.report.document import Block, Bullets, Cell, Paragraph, Span, Tone, spans
from pytest_dtdispatch.report.measurements import TIMES

SHOWN_TIMES = ("miss", "hit", "cold", "local", "overhead")  # columns of times, each in one unit


def ns_of(row: AtlasRow, title: str) -> float | None:
    """Give a time of a row, by the title of its column."""
    return TIMES[title](row.measurement) if row.measurement else None


def by_miss(rows: Iterable[AtlasRow]) -> list[AtlasRow]:
    """Sort by the cost of a miss, the most expensive first, and what has none last."""
    return sorted(rows, key=lambda row: -(ns_of(row, "miss") or 0.0))


def note_of(row: AtlasRow) -> str:
    """Say why figures are missing, what the counters refused to prove, and what no second visit found."""
    if not row.measurement:
        return str(row.outcome)
    refused = [] if row.measurement.proof in ("proved", "unpropagated") else [row.measurement.proof]
    unconfirmed = ", ".join(row.unconfirmed)
    return "; ".join([*refused, *([f"unconfirmed: {unconfirmed}"] if unconfirmed else [])])


def moves_of(row: AtlasRow) -> Cell:
    """Write what a row redistributes, each move once."""
    return with_counts(Counter(row.moves), "; ") or "-"


def with_counts(counts: Mapping[str, int], separator: str) -> tuple[Span, ...]:
    """Write names as code, each with how often it is there where that is more than once."""
    listed = [
        spans(separator * (n > 0), Span(name, Tone.CODE), f" ({count}x)" * (count > 1))
        for n, (name, count) in enumerate(counts.items())
    ]
    return tuple(itertools.chain.from_iterable(listed))


def definitions() -> Paragraph:
    """Say what the columns are."""
    text = (
        "A *miss* is the first call after the sharding caches were cleared, *cold* one after the caches "
        "that feed propagation were cleared too, a *hit* a later call, each proved by torch's cache "
        "counters; an op that never asks the propagator has its latency in the column of hits. *local* is "
        "the same op on the plain local shards, where that is one op, and *overhead* the hit less that. All "
        "are quietest blocks, and start below autograd. *propagations* counts those of one miss: the op's "
        "own, and those of the ops that torch makes it of where it has no rule of its own. *redistributes* "
        "says what the op moves though its caller did not ask for it. The collectives are fakes, which move "
        "nothing: what they cost on a network is not in these figures."
    )
    return Paragraph(tuple(map(Span, text.split("*"), itertools.cycle((Tone.PLAIN, Tone.STRONG)))))


def where_taken(atlas: Atlas) -> tuple[Block, ...]:
    """Say on what machine, by which command, and how often."""
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
        *([f"at the end: {atlas.load}"] if atlas.load else []),
    )
    return (Bullets(items),)


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
