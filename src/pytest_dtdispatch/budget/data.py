"""Budgets as data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_dtdispatch.budget.model import Budget, fold_shares
from pytest_dtdispatch.core.plain_data import select


def budgets_data(budgets: Sequence[Budget]) -> list[dict[str, Any]]:
    """Return each budget's parts, its shares by phase, line, op and folded module, and its GC pauses."""
    names = ("measured_ns", "scatter", "noise", "is_noisy", "steps", "parts", "unexplained_ns", "tracers")
    return [
        {
            **select(budget, *names),
            "phases": [*map(asdict, budget.by_phase())],
            "lines": [*map(asdict, budget.by_line())],
            "ops": [*map(asdict, budget.by_op())],
            "modules": [*map(asdict, fold_shares(budget.by_module()))],
            "collector": budget.collector and asdict(budget.collector),
        }
        for budget in budgets
    ]
