"""The kinds of results that tests can have: each a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.compiled.table import KIND as COMPILED
from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.metrics import MetricNames
from pytest_dtdispatch.core.results import NamedCall
from pytest_dtdispatch.core.units import UNITS
from pytest_dtdispatch.instructions.table import document as of_instructions
from pytest_dtdispatch.ranks.table import document as of_ranks
from pytest_dtdispatch.report.document import Document, View
from pytest_dtdispatch.report.kind import Kind
from pytest_dtdispatch.report.measurements import document as of_times
from pytest_dtdispatch.scaling.table import KIND as SCALING
from pytest_dtdispatch.steps.table import KIND as STEPS


def _document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out rows of ops and named calls: of many ranks, of instructions, or of times."""
    if view.is_many:
        return of_ranks(measured, view)
    return of_instructions(measured, view) if view.counted else of_times(measured, view)


MEASURED = Kind(NamedCall.kind, _document)
_KINDS = {kind.name: kind for kind in (MEASURED, SCALING, STEPS, COMPILED)}


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
