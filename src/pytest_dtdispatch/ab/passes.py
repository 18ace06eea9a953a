"""What a process of an A/B run is loaded with: ``pytest -p pytest_dtdispatch.ab.passes``.

All tests run several times over, so that a slow second of the machine hits one pass of a row and not all.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.measuring.sampler import SAMPLERS
from pytest_dtdispatch.plugin.options import run_settings

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session

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


class Taken:
    """Rows, pass by pass."""

    def __init__(self) -> None:
        self._medians: dict[str, list[float]] = {}
        self._quietest: dict[str, float] = {}
        self._samples: dict[str, int] = {}
        self._misses: dict[str, float] = {}

    def add(self, session: Session) -> None:
        """Add what a session measured in the pass that just ended."""
        for test, results in session.results.items():
            for measurement in results.measurements():
                for samples in measurement.times():
                    row = f"{test}::{measurement.label}::{samples.state}"
                    self._medians.setdefault(row, []).append(statistics.median(samples.ns))
                    self._quietest[row] = min(self._quietest.get(row, math.inf), quietest_block(samples.ns))
                    self._samples[row] = self._samples.get(row, 0) + len(samples.ns)
            for steps in results.counts():
                self._misses[f"{test}::{steps.name}"] = float(steps.misses_per_step)

    def as_json(self) -> str:
        """Write all of it."""
        rows = {
            row: {"medians_ns": medians, "quietest_ns": self._quietest[row], "samples": self._samples[row]}
            for row, medians in self._medians.items()
        }
        return json.dumps({"format": FORMAT, "rows": rows, "misses_per_step": self._misses})


class Passes:
    """The plugin object that runs all tests several times."""

    def __init__(self, count: int, output: Path) -> None:
        self._count = count
        self._output = output

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run every test, and then every test again; stop after a pass in which one failed."""
        measuring: Session | None = session.config.pluginmanager.get_plugin("dtdispatch-session")
        if session.testsfailed or session.config.option.collectonly or measuring is None:
            return None
        taken = Taken()
        for _ in range(self._count):
            _run_all(session)
            taken.add(measuring)
            if session.testsfailed:
                break
        write_whole(self._output, taken.as_json())
        return True


def _run_all(session: pytest.Session) -> None:
    """Run each test once, and put down everything that was set up: as pytest's own loop does."""
    items = session.items
    for item, after in zip(items, [*items[1:], None], strict=False):  # there may be none
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _refuse_counts(metric: str) -> None:
    """Refuse a sampler whose samples are no times."""
    sampler = SAMPLERS.get(metric)
    if sampler is not None and not sampler.unit.is_time:
        raise pytest.UsageError(
            f"--dtdispatch-metric {metric}: A/B runs compare times, not {sampler.unit.name}"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a process that was told where to write."""
    told: dict[str, Any] = dict(os.environ)
    if OUTPUT in told:
        _refuse_counts(run_settings(config).metric)
        config.pluginmanager.register(Passes(int(told[PASSES]), Path(told[OUTPUT])), "dtdispatch-passes")
