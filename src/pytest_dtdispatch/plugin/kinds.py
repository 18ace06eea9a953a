"""Built-in kinds of results, registered before those of extensions, in the order of tables and files."""

from __future__ import annotations

from pytest_dtdispatch.budget.table import KIND as BUDGET
from pytest_dtdispatch.comparing.scaling import KIND as SCALING
from pytest_dtdispatch.comparing.table import KIND as COMPARED
from pytest_dtdispatch.compiled.table import KIND as COMPILED
from pytest_dtdispatch.core.measurement import UNITS
from pytest_dtdispatch.core.results import CALLS, MetricNames
from pytest_dtdispatch.report.document import KINDS, Kind, register_kind
from pytest_dtdispatch.report.rows import document
from pytest_dtdispatch.steps.table import KIND as STEPS
from pytest_dtdispatch.verify.table import KIND as VERIFIED

__all__ = ["BUILT_IN", "KINDS", "MEASURED", "metric_names", "register_kind"]

MEASURED = Kind(CALLS, document, title="Signatures and calls")
for kind in (BUDGET, MEASURED, SCALING, STEPS, COMPILED, COMPARED, VERIFIED):
    register_kind(kind)
BUILT_IN = frozenset(KINDS)


def metric_names() -> MetricNames:
    """Return every metric that files of results may have."""
    of_rows = {metric: False for unit in UNITS for metric in unit.metrics}
    return of_rows | {metric: True for kind in KINDS.values() for metric in kind.metrics}
