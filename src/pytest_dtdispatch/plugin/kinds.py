"""The kinds of results that tests can have: each a line here."""

from __future__ import annotations

from pytest_dtdispatch.compiled.kind import KIND as COMPILED
from pytest_dtdispatch.core.metrics import MetricNames
from pytest_dtdispatch.core.units import UNITS
from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.scaling.kind import KIND as SCALING
from pytest_dtdispatch.steps.kind import KIND as STEPS

_KINDS = {kind.name: kind for kind in (SCALING, STEPS, COMPILED)}


def register(kind: Kind) -> None:
    """Add a kind of result, or replace the one of its name."""
    _KINDS[kind.name] = kind


def kinds() -> tuple[Kind, ...]:
    """Give every kind, in the order they are shown and written in."""
    return tuple(_KINDS.values())


def kind_of(name: str) -> Kind:
    """Give the kind that results of a name are of."""
    return _KINDS[name]


def metric_names() -> MetricNames:
    """Give every metric that files of results may have."""
    exact = tuple(metric for kind in kinds() for metric in kind.metrics)
    of_rows = tuple(metric for unit in UNITS for metric in unit.metrics)
    return MetricNames(of_rows, exact)
