"""Rows taken over several passes, as the file by which a measuring process of an A/B run answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from pytest_dtdispatch.core.metrics import MOST_LISTED, Count
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.stats.medians import quietest_block

# How a process is told what to do, and the format in which it answers.
OUTPUT, PASSES, ASKED = "DTDISPATCH_AB_OUTPUT", "DTDISPATCH_AB_PASSES", "DTDISPATCH_AB_ASKED"
FORMAT = "pytest-dtdispatch passes 1"
# Of each pass and row. At 20 rounds a block of misses is one miss, of hits 30: some milliseconds, in which a
# machine is quiet when it is never quiet for as long as a pass takes.
BLOCKS = 20
LONGEST_DETAIL = 500


class AnswerKind(str, Enum):
    """What a process is asked for."""

    TIMES = "times"
    COUNTS = "counts"
    PROOFS = "proofs"
    INSTRUCTIONS = "instructions"

    __str__ = str.__str__


class PassRows:
    """Times of rows, pass by pass."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._misses: dict[str, float] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for results in found:
            for name, _, samples in results.times():
                first = {"medians_ns": [], "quietest_ns": math.inf, "samples": 0}
                row = self._rows.setdefault(name, first)
                row["medians_ns"].append(samples.median_ns)
                row["quietest_ns"] = min(row["quietest_ns"], quietest_block(samples.ns, BLOCKS, least=1))
                row["samples"] += len(samples.ns)
            for steps in results.counts():
                self._misses[f"{results.test}::{steps.name}"] = float(steps.misses_per_step)

    def as_json(self) -> str:
        """Write all of it."""
        return json.dumps({"format": FORMAT, "rows": self._rows, "misses_per_step": self._misses})


class RunNumbers:
    """Numbers that one pass gives, each under a name of its own.

    Args:
        of: names the numbers of a test.
    """

    def __init__(self, of: Callable[[TestResults], Iterator[tuple[str, float]]]) -> None:
        self._of = of
        self._numbers: dict[str, float] = {}
        self._details: dict[str, list[str]] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for name, number in (one for results in found for one in self._of(results)):
            self._numbers[name] = float(number)
            if isinstance(number, Count) and number.details:
                self._details[name] = [line[:LONGEST_DETAIL] for line in number.details[:MOST_LISTED]]

    def as_json(self) -> str:
        """Write all of it."""
        found = {"numbers": self._numbers, "details": self._details}
        return json.dumps({"format": FORMAT, "rows": {}, "misses_per_step": {}, **found})
