"""Scalings as a kind of result."""

from __future__ import annotations

from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.scaling.judge import complaint
from pytest_dtdispatch.scaling.model import Scaling

KIND = Kind(Scaling.kind, complaint=complaint)
