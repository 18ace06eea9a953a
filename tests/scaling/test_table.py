"""What is said of fitted exponents."""

from __future__ import annotations

import math

import pytest

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.report.document import Paragraph, Tone, View
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Point, Scaling
from pytest_dtdispatch.scaling.table import document, fit_text
from tests.rendered import lines_of

ABSENT = Fit(
    State.MISS, math.nan, math.nan, math.nan, why_not="no miss was measured", verdict=LimitVerdict.ABSENT
)


def fit(verdict: LimitVerdict = LimitVerdict.NO_LIMIT) -> Fit:
    return Fit(State.HIT, 0.931, 0.85, 1.35, (1.8, 1.934), 7, verdict=verdict)


def scaling(verdict: LimitVerdict = LimitVerdict.NO_LIMIT, limit: float | None = None) -> Scaling:
    return Scaling("stack", (Point(8, None, 5), Point(16, None, 9)), ABSENT, fit(verdict), limit)


def test_a_scaling_is_a_title_and_a_line_a_state() -> None:
    assert lines_of(document({"test_a.py::test_a": [scaling()]}, View())) == [
        "test_a.py::test_a: stack at sizes 8, 16",
        "  miss not fitted: no miss was measured",
        "  hit grows as size^0.93 (0.85 to 1.35 in 7 passes), from size to size x1.80, x1.93",
    ]


def test_tests_without_a_scaling_have_no_lines() -> None:
    assert not document({"test_a.py::test_a": ()}, View())


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_width_and_lose_nothing(width: int) -> None:
    said = document({"test_a.py::test_a": [scaling(LimitVerdict.PASSED, 1.4)]}, View())
    narrow, wide = lines_of(said, width), lines_of(said, 500)
    assert max(map(len, narrow)) < width
    assert " ".join(narrow).split() == " ".join(wide).split()


@pytest.mark.parametrize(
    ("verdict", "end", "tone"),
    [
        (LimitVerdict.PASSED, "; below max_exponent=1.3", Tone.GOOD),
        (LimitVerdict.FAILED, "; above max_exponent=1.3", Tone.BAD),
        (LimitVerdict.INCONCLUSIVE, "; inconclusive: max_exponent=1.3 lies in between", Tone.NOTICE),
    ],
)
def test_a_limit_and_its_verdict_are_shown(verdict: LimitVerdict, end: str, tone: Tone) -> None:
    *_, last = document({"test": [scaling(verdict, 1.3)]}, View()).blocks
    assert isinstance(last, Paragraph)
    [span] = last.spans
    assert span.text.endswith("x1.80, x1.93" + end)
    assert span.tone is tone


def test_what_was_not_fitted_is_not_held_against_a_limit() -> None:
    assert fit_text(ABSENT, 1.3) == (
        "miss not fitted: no miss was measured; cannot be held against max_exponent=1.3"
    )
