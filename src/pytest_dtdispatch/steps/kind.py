"""Counted steps as a kind of result."""

from __future__ import annotations

from pytest_dtdispatch.report.document import Kind
from pytest_dtdispatch.steps.judge import LIMITS, complaint
from pytest_dtdispatch.steps.model import METRICS, Steps
from pytest_dtdispatch.steps.table import document

KIND = Kind(
    Steps.kind,
    document,
    tuple(METRICS),
    complaint,
    LIMITS,
    "no steps were counted; call dtdispatch.steps(fn) in the test, "
    "or count whole tests with --dtdispatch-all --dtdispatch-metric counts",
    number="{} steps were counted",
)
