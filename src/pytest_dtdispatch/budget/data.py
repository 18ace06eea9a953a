"""Budgets as data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_dtdispatch.budget.model import Budget, fold_shares
from pytest_dtdispatch.core.plain_data import select


def budgets_data(budgets: Sequence[Budget]) -> list[dict[str, Any]]:
    """Return the parts of each budget, and its shares by phase, line, op and folded module."""
    names = ("measured_ns", "scatter", "is_noisy", "steps", "parts", "unexplained_ns")
    return [
        {
            **select(one, *names),
            "phases": [*map(asdict, one.by_phase())],
            "lines": [*map(asdict, one.by_line())],
            "ops": [*map(asdict, one.by_op())],
            "modules": [*map(asdict, fold_shares(one.by_module()))],
        }
        for one in budgets
    ]
