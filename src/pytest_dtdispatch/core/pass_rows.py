"""Rows taken over several passes, as the file by which a measuring process of an A/B run answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from pytest_dtdispatch.core.metrics import MOST_LISTED, Count
from pytest_dtdispatch.core.results import TestResults, state_name
from pytest_dtdispatch.stats.medians import quietest_block

# How a process is told what to do, and the format in which it answers.
OUTPUT, PASSES, ASKED = "DTDISPATCH_AB_OUTPUT", "DTDISPATCH_AB_PASSES", "DTDISPATCH_AB_ASKED"
GO_ON = "DTDISPATCH_AB_GO_ON"  # without the tests that fail
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


def absences(results: TestResults) -> Iterator[tuple[str, str]]:
    """Say why states and rows of a test have no figure, by their names."""
    for row in results.measurements():
        for samples in row.samples:
            if samples.refused and not samples.values:
                why = row.notes or tuple(map(str, samples.refused))
                yield state_name(results.test, row, samples), "; ".join(why)
        if not any(row.recorded()):
            yield f"{results.test}::{row.label}", "; ".join(row.notes) or row.proof


class PassRows:
    """Times of rows, pass by pass."""

    def __init__(self) -> None:
        self.absent: dict[str, str] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for results in found:
            self.absent |= absences(results)
            for name, _, samples in results.times():
                first = {"medians_ns": [], "quietest_ns": math.inf, "samples": 0}
                row = self._rows.setdefault(name, first)
                row["medians_ns"].append(samples.median_ns)
                row["quietest_ns"] = min(row["quietest_ns"], quietest_block(samples.ns, BLOCKS, least=1))
                row["samples"] += len(samples.ns)

    def as_json(self) -> str:
        """Write all of it."""
        found = {"rows": self._rows, "absent": self.absent}
        return json.dumps({"format": FORMAT, **found})


class RunNumbers:
    """Numbers that one pass gives, each under a name of its own.

    Args:
        of: names the numbers of a test.
        why_absent: says why a test lacks numbers of rows, if each row should have some.
    """

    def __init__(
        self,
        of: Callable[[TestResults], Iterator[tuple[str, float]]],
        why_absent: Callable[[TestResults], Iterable[tuple[str, str]]] = lambda results: (),
    ) -> None:
        self.absent: dict[str, str] = {}
        self._of = of
        self._why_absent = why_absent
        self._numbers: dict[str, float] = {}
        self._details: dict[str, list[str]] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for results in found:
            self.absent |= self._why_absent(results)
            for name, number in self._of(results):
                self._numbers[name] = float(number)
                if isinstance(number, Count) and number.details:
                    self._details[name] = [line[:LONGEST_DETAIL] for line in number.details[:MOST_LISTED]]

    def as_json(self) -> str:
        """Write all of it."""
        found = {"numbers": self._numbers, "details": self._details, "absent": self.absent}
        return json.dumps({"format": FORMAT, "rows": {}, **found})
