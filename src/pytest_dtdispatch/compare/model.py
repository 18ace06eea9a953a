"""Variants of one call: what each took and did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.stats.medians import paired_ratio

# Two variants are told apart where the whole interval of their ratio is farther from 1 than this. Of equal
# functions it never was: see benchmarks/compare.py.
FLOOR = 0.03
CONFIDENCE = 0.999
Equal = Callable[[Any, Any], object]


@dataclass(frozen=True)
class Variants:
    """What is compared.

    Args:
        name: of the comparison.
        functions: by the labels that users gave them; the first is what others are held against.
        equal: tells whether two results are; None to compare them bit for bit.
    """

    name: str
    functions: Mapping[str, Callable[[], Any]]
    equal: Equal | None = None

    @property
    def row_names(self) -> list[str]:
        """Names of the rows."""
        return [row_name(self.name, label) for label in self.functions]


@dataclass(frozen=True)
class CallCounts:
    """What one call makes the dispatcher do.

    Args:
        misses: ops whose sharding was propagated.
        redistributes: DTensors whose placements were changed, asked for or implied.
        collectives: of every kind.
        wraps: DTensors that were made of local tensors; None where they are not counted.
    """

    misses: int = 0
    redistributes: int = 0
    collectives: int = 0
    wraps: int | None = None


METRICS: dict[str, Callable[[CallCounts], int | None]] = {
    "misses_per_call": lambda counts: counts.misses,
    "redistributes_per_call": lambda counts: counts.redistributes,
    "collectives_per_call": lambda counts: counts.collectives,
    "wraps_per_call": lambda counts: counts.wraps,
}


class Told(str, Enum):
    """What an interval of a ratio says."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_APART = "not told apart"

    __str__ = str.__str__


@dataclass(frozen=True)
class Ratio:
    """How many times as long one variant takes as another: the median over rounds, with its interval.

    Args:
        ratio: median of the ratios of all rounds.
        low: lower end of the interval that holds it with 99.9 %.
        high: upper end.
        rounds: in each of which both were taken.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def told(self) -> Told:
        """Which of both is faster, where the whole interval says so by 3 % at the least."""
        if self.is_below():
            return Told.FASTER
        return Told.SLOWER if self.is_above() else Told.NOT_APART

    def is_below(self, by: float = 0.0) -> bool:
        """Tell whether the whole interval says that a share of the time is saved."""
        return self.high < 1 - max(by, FLOOR)

    def is_above(self, by: float = 0.0) -> bool:
        """Tell whether the whole interval says that a share of the time is added."""
        return self.low > 1 + max(by, FLOOR)

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class ComparedVariant:
    """One variant, as it is kept with the results of the test.

    Args:
        name: of its row, ``mlp[plain]``.
        label: that the user gave it, ``plain``.
        base_name: of the comparison, ``mlp``.
        measurement: its row; a sample is the median of a block of calls, one block a round.
        counts: of one call; None where it could not be repeated to count.
        to_first: how many times as long it takes as the first; None of the first, and where it is not known.
    """

    kind: ClassVar[str] = "compared"
    name: str
    label: str
    base_name: str
    measurement: Measurement
    counts: CallCounts | None = None
    to_first: Ratio | None = None

    def rows(self) -> tuple[Measurement, ...]:
        """Its one row."""
        return (self.measurement,)

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Every count."""
        for metric, of in METRICS.items():
            if self.counts is not None and (value := of(self.counts)) is not None:
                yield metric, value

    @property
    def samples(self) -> Samples | None:
        """Its samples, one a round; None where there are none."""
        return self.measurement.of(State.CALL)


def ratio_of(one: ComparedVariant, other: ComparedVariant) -> Ratio | None:
    """Give how many times as long one takes as the other; None where that is not known."""
    if not (one.samples and other.samples):
        return None
    found = paired_ratio(other.samples.values, one.samples.values, CONFIDENCE)
    return None if found is None else Ratio(*found, rounds=len(one.samples.values))


def row_name(name: str, label: str) -> str:
    """Name the row of one variant: ``mlp[plain]``."""
    return f"{name}[{label}]"
