"""Row identities from text, for parts that do not contain ``::``."""

from __future__ import annotations

from typing import Any

from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId


def row_id(text: str) -> RowId:
    """Return the identity of a row: ``t.py::test_a::add``, or ``add`` without a test."""
    test, _, label = text.rpartition("::")
    return RowId(test, label)


def state_id(text: str) -> RowId:
    """Return the identity of a state of a row: ``t.py::test_a::add::hit``."""
    name, _, state = text.rpartition("::")
    return row_id(name)._replace(state=state)


def number(name: str, metric: str, value: int, *others: Any, **more: Any) -> MetricValue:
    """Return the value of a metric of a row, given its name."""
    return MetricValue(row_id(name), metric, value, *others, **more)
