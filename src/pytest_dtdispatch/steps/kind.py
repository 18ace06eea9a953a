"""Counted steps as a kind of result."""

from __future__ import annotations

from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.steps.judge import LIMITS, complaint
from pytest_dtdispatch.steps.model import METRICS, Steps

KIND = Kind(
    Steps.kind,
    tuple(METRICS),
    complaint,
    LIMITS,
    "no steps were counted; call dtdispatch.steps(fn) in the test, "
    "or count whole tests with --dtdispatch-all --dtdispatch-metric counts",
    number="{} steps were counted",
)
