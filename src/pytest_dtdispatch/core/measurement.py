"""Samples of one state, and all that was measured of one signature or one call."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import starmap

from pytest_dtdispatch.core.profile import Profile
from pytest_dtdispatch.core.units import TIME, Unit


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
        values: in their unit, in the order they were taken.
        refused: what was taken for this state and not recorded.
        unit: what they are in: nanoseconds, if not said.
        profile: where the instructions of a call in this state went, if that was asked for.

    Raises:
        ValueError: a value that no clock or counter can give.

    Example:
        >>> from pytest_dtdispatch.core.units import INSTRUCTIONS
        >>> hits = Samples(State.HIT, (46_104, 46_110, 46_104), unit=INSTRUCTIONS)
        >>> hits.figure, hits.span, hits.ns
        (46104, 6, ())
    """

    state: State
    values: tuple[int, ...]
    refused: tuple[Refused, ...] = ()
    unit: Unit = TIME
    profile: Profile | None = None

    def __post_init__(self) -> None:
        for value in self.values:
            if not self.unit.holds(value):
                says = (
                    f"a latency of {value} ns"
                    if self.unit.is_time
                    else f"no count of {self.unit.name}: {value}"
                )
                raise ValueError(says)

    @property
    def ns(self) -> tuple[int, ...]:
        """Latencies in nanoseconds; none where the samples are no times."""
        return self.values if self.unit.is_time else ()

    @property
    def figure(self) -> float:
        """What stands for the samples: the median of times, else the least; there must be a sample."""
        return self.unit.figure(self.values)

    @property
    def median_ns(self) -> float:
        """Median latency in nanoseconds; there must be a latency."""
        return statistics.median(self.ns)

    @property
    def span(self) -> int:
        """How much greater the greatest sample is than the least."""
        return max(self.values) - min(self.values)


def refused_of(every: Iterable[Samples]) -> tuple[Refused, ...]:
    """Add up, reason by reason, what was refused of several samples."""
    refused: Counter[str] = Counter()
    for samples in every:
        for one in samples.refused:
            refused[one.reason] += one.count
    return tuple(starmap(Refused, refused.items()))


@dataclass(frozen=True)
class Figures:
    """What was measured of one call.

    Args:
        rounds: rounds done, not rounds planned.
        samples: one entry for each state that was tried.
        notes: what every reader must know: why there are no figures, what was done differently.
        remarks: what explains the figures to who asks: why there is no local row.
    """

    rounds: int = 0
    samples: tuple[Samples, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


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
        return next((s for s in self.samples if s.state is state and s.values), None)

    def figure(self, state: State) -> float | None:
        """What stands for one state, or nothing where none was recorded."""
        samples = self.of(state)
        return samples.figure if samples else None

    def median_ns(self, state: State) -> float | None:
        """Median of one state in nanoseconds, or nothing where no time was recorded."""
        samples = self.of(state)
        return samples.median_ns if samples and samples.ns else None

    @property
    def steady(self) -> Samples | None:
        """Samples of calls in the steady state: hits, else unpropagated calls."""
        return self.of(State.HIT) or self.of(State.CALL)

    @property
    def steady_ns(self) -> float | None:
        """Median latency in nanoseconds of a call in the steady state: a hit, else an unpropagated call."""
        return self.median_ns(self.steady.state) if self.steady else None

    @property
    def overhead_ns(self) -> float | None:
        """What dispatch adds to the op on the local shards, in nanoseconds: steady minus local."""
        steady, local = self.steady_ns, self.median_ns(State.LOCAL)
        return steady - local if steady is not None and local is not None else None

    @property
    def miss_over_hit(self) -> float | None:
        """How many hits one miss costs."""
        miss, hit = self.median_ns(State.MISS), self.median_ns(State.HIT)
        return miss / hit if miss is not None and hit else None

    @property
    def proof(self) -> str:
        """One phrase that says what the cache counters proved of these samples."""
        refused = [refusal for samples in self.samples for refusal in samples.refused]
        if refused:
            return ", ".join(str(refusal) for refusal in refused)
        recorded = {samples.state for samples in self.recorded()}
        if self.contains is Contains.COMPILED:
            return "proved" if recorded else "not measured"
        if State.CALL in recorded:
            return "unpropagated"
        return "proved" if recorded & {State.MISS, State.HIT} else "not measured"

    def recorded(self) -> Iterator[Samples]:
        """Every state that has samples."""
        return (samples for samples in self.samples if samples.values)

    def times(self) -> Iterator[Samples]:
        """Every state that has latencies: the rows of this measurement."""
        return (samples for samples in self.samples if samples.ns)
