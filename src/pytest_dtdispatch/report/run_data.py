"""What a saved run tells beside pytest-benchmark's rows, as data: all that a report of it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dtdispatch.core.measurement import TIME, Measurement, Unit
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.reported_run import ReportedDocument, ReportedGate, ReportedRun

KEY = "dtdispatch_report"  # in the file, beside "dtdispatch"
VERSION = 1


@dataclass(frozen=True)
class RunData:
    """What is kept of a reported run.

    Args:
        version: of this form.
        taken: when the run was.
        environment: where it was.
        unit: what its samples are in.
        order: the label of each row, by test, as they were measured.
        unrecorded: rows of tests with the states that have no sample: pytest-benchmark takes none of these.
        documents: of other kinds.
        gates: what they said.
        explained: what part of the calls the rows explain.
        notices: what must be known beside the figures.
    """

    version: int = VERSION
    taken: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = TIME
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unrecorded: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    documents: tuple[ReportedDocument, ...] = ()
    gates: tuple[ReportedGate, ...] = ()
    explained: Document = field(default_factory=Document)
    notices: Document = field(default_factory=Document)


def data_of(run: ReportedRun) -> dict[str, Any]:
    """Make data of what a file of pytest-benchmark does not have of a run."""
    unrecorded = {
        test: tuple(bare for row in rows if (bare := _without_samples(row)) is not None)
        for test, rows in run.measured.items()
    }
    kept = RunData(
        taken=run.taken,
        environment=run.environment,
        unit=run.unit,
        order={test: tuple(row.label for row in rows) for test, rows in run.measured.items()},
        unrecorded={test: rows for test, rows in unrecorded.items() if rows},
        documents=run.documents,
        gates=run.gates,
        explained=run.explained,
        notices=run.notices,
    )
    plain: dict[str, Any] = encode(kept)
    return plain


def read_data(plain: Any) -> RunData | None:
    """Read such data; None of a file of a version that has none, or has it in a later form.

    Raises:
        ValueError: in a few words, what is no such data.
    """
    if plain is None or (isinstance(plain, dict) and plain.get("version") != VERSION):
        return None
    try:
        kept: RunData = decode(RunData, plain)
    except RecursionError:
        raise ValueError(f"its {KEY} is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"its {KEY} has {error}") from None
    return kept


def _without_samples(row: Measurement) -> Measurement | None:
    """Leave of a row the states that were tried and have no time; None where it has none of these."""
    tried = tuple(samples for samples in row.samples if not samples.ns)
    if row.samples and not tried:
        return None
    return replace(row, figures=replace(row.figures, samples=tried))
