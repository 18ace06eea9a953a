"""Compiled functions as a kind of result."""

from __future__ import annotations

from pytest_dtdispatch.compiled.judge import LIMITS, complaint
from pytest_dtdispatch.compiled.model import METRICS, CompiledVariant
from pytest_dtdispatch.compiled.table import document
from pytest_dtdispatch.report.document import Kind

KIND = Kind(
    CompiledVariant.kind,
    document,
    tuple(METRICS),
    complaint,
    LIMITS,
    "nothing was compiled; call dtdispatch.compile(fn, *args) in the test",
)
