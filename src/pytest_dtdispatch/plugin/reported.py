"""A run of pytest that has ended as one that is reported, for every format that is written."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.plugin.kinds import KINDS, MEASURED, documents
from pytest_dtdispatch.report.document import Document, View
from pytest_dtdispatch.report.notes import explained_lines
from pytest_dtdispatch.report.reported_run import ReportedDocument, ReportedGate, ReportedRun

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.core.verdicts import Threshold
    from pytest_dtdispatch.plugin.settings import Settings


def reported_run(
    found: Mapping[str, TestResults],
    settings: Settings,
    gates: tuple[ReportedGate, ...],
    notices: tuple[Document, ...],
    taken: str,
    thresholds: Mapping[str, tuple[Threshold, ...]],
) -> ReportedRun:
    """Gather what was found in all tests, whole, and what gates and ranks said."""
    view = View(verbose=True)
    # Where nothing was measured, it may be because there is no such place.
    has_found = any(found.values())
    return ReportedRun(
        taken=taken,
        environment=environment_texts(settings) if has_found else {},
        build=settings.environment().as_dict() if has_found else {},
        measured={test: results.measurements() for test, results in found.items() if results},
        thresholds=thresholds,
        documents=tuple(
            ReportedDocument(kind, document)
            for kind, document in documents(found, view).items()
            if kind != MEASURED.name
        ),
        numbers=tuple(number for results in found.values() for number in results.numbers(KINDS)),
        gates=gates,
        explained=Document(tuple(explained_lines(found, view))),
        traces=tuple(trace for results in found.values() for trace in results.traces),
        notices=Document(tuple(block for notice in notices for block in notice.blocks)),
    )


def environment_texts(settings: Settings) -> dict[str, str]:
    """Name what figures depend on, in texts."""
    ours = {name.replace("_", " "): str(value) for name, value in settings.environment().as_dict().items()}
    parts = {
        "CPU": cpu_model(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "pytest-dtdispatch": version("pytest-dtdispatch"),
        "metric": settings.metric,
        **ours,
    }
    return {name: text for name, text in parts.items() if text}
