"""Samples of one state, and all that was measured of one signature or one call."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_dtdispatch.instructions.model import Profile


class State(str, Enum):
    """What a sample was proved to be."""

    MISS = "miss"
    HIT = "hit"
    COLD = "cold"
    CALL = "call"
    LOCAL = "local"
    COMPILE_COLD = "compile-cold"
    COMPILE_WARM = "compile-warm"
    EAGER = "eager"

    def __str__(self) -> str:
        return self.value


class Contains(str, Enum):
    """Where the clock of a figure starts."""

    DISPATCH = "dispatch from below autograd"
    END_TO_END = "end to end from Python, autograd included"
    COMPILED = "torch.compile with the first call; later calls; end to end from Python"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Refused:
    """Samples that were taken and not recorded, because the counters said something else happened."""

    reason: str
    count: int

    def __str__(self) -> str:
        return f"{self.reason} ({self.count}x)"


@dataclass(frozen=True)
class Samples:
    """All samples of one state that were proved to be in it.

    Args:
        state: the state they were proved to be in.
        ns: latencies in nanoseconds, in the order they were taken.
        refused: what was taken for this state and not recorded.

    Raises:
        ValueError: a latency is negative, which no clock of ours can give.
    """

    state: State
    ns: tuple[int, ...]
    refused: tuple[Refused, ...] = ()

    def __post_init__(self) -> None:
        if any(sample < 0 for sample in self.ns):
            raise ValueError(f"a latency of {min(self.ns)} ns")

    @property
    def median_ns(self) -> float:
        """Median latency in nanoseconds; there must be a sample."""
        return statistics.median(self.ns)


MOST_INSTRUCTIONS = 2**63  # a counter that is not there reads 2**64 - 1


def is_count(reading: int) -> bool:
    """Tell a count of instructions from what a counter reads that does not count.

    Example:
        >>> is_count(46_104), is_count(0), is_count(2**64 - 1)
        (True, False, False)
    """
    return 0 < reading < MOST_INSTRUCTIONS


@dataclass(frozen=True)
class Instructions:
    """Instructions of all calls of one state that were proved to be in it.

    Args:
        state: the state they were proved to be in.
        counts: of each call, in the order they were taken.
        refused: what was taken for this state and not recorded.

    Raises:
        ValueError: a count is 0, or one that no program reaches.

    Example:
        >>> hits = Instructions(State.HIT, (46_104, 46_110, 46_104))
        >>> hits.least, hits.spread
        (46104, 6)
    """

    state: State
    counts: tuple[int, ...]
    refused: tuple[Refused, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(is_count, self.counts)):
            raise ValueError(f"no count of instructions: {next(n for n in self.counts if not is_count(n))}")

    @property
    def least(self) -> int:
        """The least count, which gates compare; there must be one."""
        return min(self.counts)

    @property
    def spread(self) -> int:
        """How many instructions the greatest count has more than the least."""
        return max(self.counts) - self.least


@dataclass(frozen=True)
class Figures:
    """What was measured of one call.

    Args:
        rounds: rounds done, not rounds planned.
        samples: one entry for each state that was tried.
        notes: what every reader must know: why there are no figures, what was done differently.
        remarks: what explains the figures to who asks: why there is no local row.
        instructions: one entry for each state that was tried, where instructions were counted; then there
            are no samples.
        profiles: where the instructions of a call in each state went, if that was asked for.
    """

    rounds: int = 0
    samples: tuple[Samples, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    instructions: tuple[Instructions, ...] = ()
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """Everything measured of one signature, or of one named call, in one test.

    Args:
        label: the signature as text, or the name of the call.
        full_label: the same, never shortened.
        op: the op overload, or the name of the call.
        mesh: mesh and device as text, ``4`` or ``2x4:cuda``; empty where no mesh is known.
        contains: where the clock starts.
        calls: how often the program made this call.
        figures: what was measured.
    """

    label: str
    full_label: str
    op: str
    mesh: str
    contains: Contains
    calls: int
    figures: Figures

    @property
    def rounds(self) -> int:
        """Rounds done, not rounds planned."""
        return self.figures.rounds

    @property
    def samples(self) -> tuple[Samples, ...]:
        """One entry for each state that was tried."""
        return self.figures.samples

    @property
    def notes(self) -> tuple[str, ...]:
        """What every reader must know: why there are no figures, what was done differently."""
        return self.figures.notes

    @property
    def remarks(self) -> tuple[str, ...]:
        """What explains the figures to who asks: why there is no local row."""
        return self.figures.remarks

    def of(self, state: State) -> Samples | None:
        """Samples of one state, or nothing where none was recorded."""
        return next((s for s in self.samples if s.state is state and s.ns), None)

    def median_ns(self, state: State) -> float | None:
        """Median of one state in nanoseconds, or nothing where none was recorded."""
        samples = self.of(state)
        return samples.median_ns if samples else None

    @property
    def steady_ns(self) -> float | None:
        """Median latency in nanoseconds of a call in the steady state: a hit, else an unpropagated call."""
        hit = self.median_ns(State.HIT)
        return hit if hit is not None else self.median_ns(State.CALL)

    @property
    def overhead_ns(self) -> float | None:
        """What dispatch adds to the op on the local shards, in nanoseconds: steady minus local."""
        steady, local = self.steady_ns, self.median_ns(State.LOCAL)
        return steady - local if steady is not None and local is not None else None

    def instructions_of(self, state: State) -> Instructions | None:
        """Counts of one state, or nothing where none was recorded."""
        return next((one for one in self.figures.instructions if one.state is state and one.counts), None)

    @property
    def steady_instructions(self) -> Instructions | None:
        """Counts of calls in the steady state: hits, else unpropagated calls."""
        return self.instructions_of(State.HIT) or self.instructions_of(State.CALL)

    @property
    def miss_over_hit(self) -> float | None:
        """How many hits one miss costs."""
        miss, hit = self.median_ns(State.MISS), self.median_ns(State.HIT)
        return miss / hit if miss is not None and hit else None

    @property
    def proof(self) -> str:
        """One phrase that says what the cache counters proved of these samples."""
        tried: tuple[Samples | Instructions, ...] = (*self.samples, *self.figures.instructions)
        refused = [refusal for one in tried for refusal in one.refused]
        if refused:
            return ", ".join(str(refusal) for refusal in refused)
        recorded = {*(one.state for one in self.recorded()), *(one.state for one in self.counted())}
        if self.contains is Contains.COMPILED:
            return "proved" if recorded else "not measured"
        if State.CALL in recorded:
            return "unpropagated"
        return "proved" if recorded & {State.MISS, State.HIT} else "not measured"

    def recorded(self) -> Iterator[Samples]:
        """Every state that has samples: the rows of this measurement."""
        return (samples for samples in self.samples if samples.ns)

    def counted(self) -> Iterator[Instructions]:
        """Every state whose instructions were counted."""
        return (one for one in self.figures.instructions if one.counts)
