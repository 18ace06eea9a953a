"""Judge recorded samples with the rule of an older commit. ``gate_rules.py --old-rule REV`` runs it.

The source of that commit is on ``PYTHONPATH``. Standard input has rows (row, state, nanoseconds, share of
waits) of ``bases`` and ``heads``, and ``pairs`` of their indices; for each pair, standard output has rows
with their verdicts (row, state, verdict, verdict if every sample takes 1.3 times as long).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

PLANTED = 1.3

saved_run: Any = import_module("pytest_dtdispatch.gates.saved_run")
RowId = import_module("pytest_dtdispatch.core.row_id").RowId
Threshold = import_module("pytest_dtdispatch.core.verdicts").Threshold
LIMITS = (Threshold("", "median", 0.2),)
interval_of_ratio = cache(saved_run.interval_of_ratio)
slowed: dict[Sequence[int], tuple[int, ...]] = {}  # slowed samples, and the samples themselves


def interval(base: Sequence[int], head: Sequence[int], figure: str) -> Sequence[float]:
    """Return the interval of a ratio; that of slowed samples is not computed again."""
    factor = PLANTED if head in slowed else 1.0
    return [end * factor for end in interval_of_ratio(base, slowed.get(head, head), figure)]


def rows_of(process: Sequence[Any], factor: float = 1.0) -> list[Any]:
    """Return the rows of a process in the types of that commit, all but plain ops slowed by a factor."""
    rows = []
    for row, state, ns, waited in process:
        own = tuple(ns)
        if factor != 1 and state != "local":
            own = tuple(round(each * factor) for each in ns)
            slowed[own] = tuple(ns)
        rows.append(saved_run.StateRow(RowId(row, "", state), own, waited=waited))
    return rows


def verdicts_of(base: Sequence[Any], head: Sequence[Any]) -> dict[Any, str]:
    """Judge a run."""
    judged = saved_run.judge_run(base, head, lambda row: LIMITS).verdicts
    return {verdict.row: str(verdict.verdict) for verdict in judged}


def main() -> None:
    """Judge all pairs."""
    content = json.load(sys.stdin)
    saved_run.interval_of_ratio = interval
    answer = []
    for i, j in content["pairs"]:
        base, head = content["bases"][i], content["heads"][j]
        clean, slower = (verdicts_of(rows_of(base), rows_of(head, factor)) for factor in (1.0, PLANTED))
        shared = {(row, state) for row, state, *_ in base} & {(row, state) for row, state, *_ in head}
        rows = [(RowId(row, "", state), state) for row, state in shared if state != "local"]
        answer.append([(row.test, state, clean[row], slower[row]) for row, state in rows])
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
