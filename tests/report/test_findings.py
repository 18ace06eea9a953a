"""Custom results that no file can hold are refused when they are recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.results import Advice, Count
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, judge_count
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.report.data import run_text
from pytest_dtdispatch.report.document import KINDS, Document, Kind
from pytest_dtdispatch.report.findings import check_finding, check_written
from pytest_dtdispatch.report.run import ReportedRun, encode_run
from pytest_dtdispatch.rounds.sampler import Meter
from pytest_dtdispatch.rounds.timing import Series, Subject
from tests.reported_runs import measured, row


class Ambiguous:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Blocks:
    kind: ClassVar[str] = "blocks"
    name: Any = "model"
    value: Any = 12
    parts: Any = ()
    found: Sequence[Any] = ()
    called: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> Sequence[Any]:
        return self.found

    def metrics(self) -> Any:
        return [("blocks", self.value)] if self.called is None else self.called


KIND = Kind("blocks", lambda found, view: Document(), ("blocks",))
NO_INTEGERS = [
    *(np.int64(3), np.float64(3), np.array(3), np.bool_(True), True, 3.0, 2.5, math.nan, math.inf),
    *("3", None, Fraction(3), Decimal(3), 2**70, Count(3, 1)),
]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_metric_must_be_an_integer(value: object) -> None:
    with pytest.raises(
        MeasurementError, match=r"^record\(\): blocks 'model': metrics\(\) has .*; valid: "
    ) as raised:
        check_finding(KIND, Blocks(value=value))
    assert "\n" not in str(raised.value)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
INVALID = [
    {"name": b"model"},
    {"name": None},
    {"called": [("blocks", 1, 2)]},
    {"called": [(1, 1)]},
    {"called": ["blocks"]},
    {"parts": np.int64(3)},
    {"parts": [1, {"a": np.zeros(2)}]},
    {"parts": {1, 2}},
    {"parts": b"bytes"},
    {"parts": 10**400},
    {"parts": CYCLE},
    {"parts": math.nan},
    {"parts": Lock()},
    {"parts": Ambiguous()},
    {"extra": {"a": object()}},
    {"found": ["no row"]},
    {"found": [measured("add", row().figures.samples[0]).__class__("a", "a", "a", 4, None, 1, None)]},  # type: ignore[arg-type]
]


def types_of(fields: dict[str, Any]) -> str:
    """Return an id that is equal in all workers; some of these objects have addresses in their texts."""
    return ",".join(f"{name}={type(value).__name__}" for name, value in fields.items())


@pytest.mark.parametrize("fields", INVALID, ids=types_of)
def test_invalid_result_is_one_line(fields: dict[str, Any]) -> None:
    with pytest.raises(MeasurementError, match=r"^record\(\): ") as raised:
        check_finding(KIND, Blocks(**fields))
    assert "\n" not in str(raised.value)


def test_declared_types_are_checked() -> None:
    @dataclass(frozen=True)
    class Typed(Blocks):
        value: int = 12

    kind = Kind("blocks", KIND.document, type=Typed)
    check_finding(kind, Typed())
    with pytest.raises(MeasurementError, match=r"no int: 2\.5"):
        check_finding(kind, Typed(value=2.5, called=()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parts", [(), [1, 2.5, None, True, "x"], {"a": [Count(5, 2)], 2: math.inf}, Verdict.PASSED, "\udc80"]
)
def test_valid_result_is_written(parts: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "blocks", KIND)
    result = Blocks(parts=parts, found=(row(),))
    check_finding(KIND, result)
    assert run_text(ReportedRun(results={"blocks": {"t.py::test": (result,)}}))[0].startswith("{")


def test_plain_object_is_a_valid_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "blocks", KIND)
    result: Any = SimpleNamespace(kind="blocks", name="m", rows=lambda: (), metrics=lambda: [("blocks", 12)])
    check_finding(KIND, result)
    run = ReportedRun(results={"blocks": {"t.py::test": (result,)}})
    assert '"metrics":{"blocks":12}' in run_text(run)[0]
    saved = encode_run(run)["run"]["results"]["blocks"]["t.py::test"]
    assert saved == [{"name": "m", "metrics": {"blocks": 12}}]


def test_invalid_advice_and_verdicts_are_refused() -> None:
    number: Any = np.int64(12)
    advice = Advice("x", "y", "z", count=number)
    with pytest.raises(MeasurementError, match="count is"):
        check_finding(Kind("blocks", KIND.document, advice=lambda result: [advice]), Blocks())
    for verdict in (
        judge_count("model", "blocks", 11, number, "there are 12"),
        judge_count("model", "blocks", 11, math.nan, "there are some"),  # type: ignore[arg-type]
        RowVerdict(RowId("", "model"), Verdict.PASSED, details=(1,)),  # type: ignore[arg-type]
        None,
    ):
        with pytest.raises(MeasurementError, match="a verdict"):
            check_written(verdict, RowVerdict, "a verdict")
    check_written(judge_count("model", "blocks", 11, 12, "there are 12"), RowVerdict, "a verdict")


@pytest.mark.parametrize("sample", [np.int64(3), 3.0, True, math.nan], ids=repr)
def test_sample_must_be_an_integer(sample: Any) -> None:
    with pytest.raises(MeasurementError, match="it must be an int"):
        Series(State.HIT, Subject(int, tuple), Meter(int, int)).record(sample)


def test_rows_are_measurements() -> None:
    check_written(row(), Measurement, "a row")
