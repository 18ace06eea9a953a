"""Budgets as data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_dtdispatch.budget.model import Budget, fold_shares
from pytest_dtdispatch.core.plain_data import MAX_OF_CLASS, left_out, select
from pytest_dtdispatch.steps.data import causes_data


def budgets_data(budgets: Sequence[Budget]) -> list[dict[str, Any]]:
    """Return each budget's parts, its shares by phase, line, op and module, redistributions and GC pauses."""
    names = ("measured_ns", "waiting_ns", "scatter", "noise", "is_noisy", "steps", "parts", "unexplained_ns")
    data = []
    for budget in budgets:
        shares = {"phases": budget.by_phase(), "lines": budget.by_line(), "ops": budget.by_op()}
        shares["modules"] = fold_shares(budget.by_module())
        causes = causes_data([budget.redistributions])
        collector = budget.collector and asdict(budget.collector)
        about = {**select(budget, *names, "tracers", "slowed_by"), "collector": collector}
        about["redistributions"] = causes[:MAX_OF_CLASS]
        about["left_out"] = left_out({**shares, "redistributions": causes})
        data.append(about | {name: [*map(asdict, each[:MAX_OF_CLASS])] for name, each in shares.items()})
    return data
