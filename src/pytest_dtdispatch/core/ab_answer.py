"""What a measuring process of an A/B run is told, and what it answers: both sides of it read this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

# Variables by which a process is told what to do.
OUTPUT, PASSES, KIND = "DTDISPATCH_AB_OUTPUT", "DTDISPATCH_AB_PASSES", "DTDISPATCH_AB_KIND"
GO_ON = "DTDISPATCH_AB_GO_ON"  # without the tests that fail


class AnswerKind(str, Enum):
    """What a process answers with."""

    TIMES = "times"
    COUNTS = "counts"
    PROOFS = "proofs"
    INSTRUCTIONS = "instructions"

    __str__ = str.__str__


@dataclass(frozen=True)
class RowSample:
    """One row in one process; a ValueError refuses figures that no process can have.

    Args:
        medians_ns: median latency of each pass over all tests, in nanoseconds, in the order taken.
        quietest_ns: the least median of a block, of all blocks that all passes were cut into.
        samples: how many latencies were recorded, in all passes.
    """

    medians_ns: tuple[float, ...]
    quietest_ns: float
    samples: int

    def __post_init__(self) -> None:
        figures = (*self.medians_ns, self.quietest_ns)
        if not self.medians_ns or not all(0 < ns < math.inf for ns in figures) or self.samples < 1:
            raise ValueError(f"latencies of {figures} ns, {self.samples} samples")


@dataclass(frozen=True)
class Answer:
    """What a process measured; a ValueError refuses numbers that are none.

    Args:
        rows: times, by row.
        numbers: what is no time, by name.
        details: what counts consist of, by the name of the number.
        absent: why rows, or all rows of a test, are not there.
    """

    rows: Mapping[str, RowSample] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, number in self.numbers.items():
            if not math.isfinite(number):
                raise ValueError(f"{name}: {number}")
