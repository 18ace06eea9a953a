"""Rows taken over several passes, as the file by which a measuring process of an A/B run answers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence

from pytest_dtdispatch.core.results import TestResults

# How a process is told what to do, and the format in which it answers.
OUTPUT, PASSES = "DTDISPATCH_AB_OUTPUT", "DTDISPATCH_AB_PASSES"
FORMAT = "pytest-dtdispatch passes 1"
# Of each pass and row. At 20 rounds a block of misses is one miss, of hits 30: some milliseconds, in which a
# machine is quiet when it is never quiet for as long as a pass takes.
BLOCKS = 20


def quietest_block(ns: Sequence[int]) -> float:
    """Give the least median of neighbouring samples, cut into blocks.

    Example:
        >>> quietest_block([9, 8, 4, 5] + [50] * 36)
        4.5
    """
    length = -(-len(ns) // BLOCKS)
    return min(statistics.median(ns[start : start + length]) for start in range(0, len(ns), length))


class PassRows:
    """Rows, pass by pass."""

    def __init__(self) -> None:
        self._medians: dict[str, list[float]] = {}
        self._quietest: dict[str, float] = {}
        self._samples: dict[str, int] = {}
        self._misses: dict[str, float] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for results in found:
            for measurement in results.measurements():
                for samples in measurement.times():
                    row = f"{results.test}::{measurement.label}::{samples.state}"
                    self._medians.setdefault(row, []).append(statistics.median(samples.ns))
                    self._quietest[row] = min(self._quietest.get(row, math.inf), quietest_block(samples.ns))
                    self._samples[row] = self._samples.get(row, 0) + len(samples.ns)
            for steps in results.counts():
                self._misses[f"{results.test}::{steps.name}"] = float(steps.misses_per_step)

    def as_json(self) -> str:
        """Write all of it."""
        rows = {
            row: {"medians_ns": medians, "quietest_ns": self._quietest[row], "samples": self._samples[row]}
            for row, medians in self._medians.items()
        }
        return json.dumps({"format": FORMAT, "rows": rows, "misses_per_step": self._misses})
