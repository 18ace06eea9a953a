"""Pytest's last line: what failed beside tests stands in it in red, and what was not measured in yellow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from _pytest import terminal

GATE_FAILED, FILE_LOST, NOT_MEASURED = "gate failed", "file not written", "not measured"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add each kind of failure with its number, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        reporter.stats.setdefault("error", [])  # pytest chooses red by what kinds there are
        getattr(terminal, "_color_for_type", {})[words] = "red"
        reporter._add_stats(words, [words] * number)


def add_not_measured(reporter: Any) -> None:
    """Add how many of the tests that passed were not measured, where nothing was."""
    if number := len(reporter.stats.get("passed", ())):
        reporter._add_stats(NOT_MEASURED, [NOT_MEASURED] * number)
