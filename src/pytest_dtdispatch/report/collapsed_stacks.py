"""Profiles of a run as collapsed stacks, which flame graphs are drawn from.

A line is a chain of callers and the instructions of its last one: ``a;b;c 123``. The form is that of
https://github.com/brendangregg/FlameGraph, which speedscope, inferno and others read too.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.core.profiles import paths
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.reported_run import ReportedRun


def collapsed_stacks(run: ReportedRun) -> str:
    """Write a line for each chain: first the test, the signature and the state, then functions of Python."""
    return "".join(f"{';'.join(chain)} {count}\n" for chain, count in _chains(run))


def stack_count(run: ReportedRun) -> int:
    """Count the chains that there are."""
    return sum(1 for _ in _chains(run))


def frame(text: str) -> str:
    """Write a name so that it is one frame.

    Example:
        >>> frame("first; second")
        'first, second'
    """
    return printable(" ".join(text.replace(";", ",").split())) or "unnamed"


def _chains(run: ReportedRun) -> Iterator[tuple[tuple[str, ...], int]]:
    for test, rows in run.measured.items():
        for row in rows:
            for samples in row.recorded():
                top = (frame(test), frame(row.full_label), f"a {samples.state}")
                for (_, *chain), count in paths(samples.profile.calls if samples.profile else ()):
                    yield (*top, *map(frame, chain)), count
