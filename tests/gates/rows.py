"""Rows of timed passes for tests of gates."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Threshold
from pytest_dtdispatch.gates.times import TimedRow

TEN = Threshold("", "min", 0.1)
CALLS = (1000, 1040, 1100)  # of each pass


def row(
    state: str = "hit",
    factor: float = 1.0,
    *,
    label: str = "add",
    passes: int = 8,
    calls: Sequence[int] = CALLS,
    cpu: float | None = None,
) -> TimedRow:
    """Build a row whose calls take this many times as long, with CPU time if its factor is given."""
    ns = [tuple(round(each * by) for each in calls) * passes for by in (factor, cpu or 0.0)]
    times = Samples(State(state), ns[0], lengths=(len(calls),) * passes, cpu=ns[1] if cpu is not None else ())
    return TimedRow(RowId("t.py::test_a", label, state), times)


def in_passes(*passes: Sequence[int], **more: object) -> TimedRow:
    """Build a row of hits in these passes."""
    ns = tuple(value for of_pass in passes for value in of_pass)
    times = Samples(State.HIT, ns, lengths=tuple(map(len, passes)), **more)  # type: ignore[arg-type]
    return TimedRow(RowId("t.py::test_a", "add", "hit"), times)
