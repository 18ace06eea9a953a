"""Exponents: what is fitted, what is said where nothing is, and what a limit says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples, State
from pytest_dtdispatch.gates.limits import complaint
from pytest_dtdispatch.report.document import Paragraph, Tone, View
from pytest_dtdispatch.scaling.judge import (
    MIN_PASSES,
    document,
    fit_power,
    fit_scaling,
    fit_text,
    judge,
    merge,
)
from pytest_dtdispatch.scaling.model import Fit, LimitVerdict, Point, Scaling
from tests.rendered import lines_of

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PASSES = 7
SIZES = (8, 16, 32)
several_sizes = st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True).map(sorted)
costs = st.floats(1e-3, 1e9)


@st.composite
def some_passes(draw: st.DrawFn) -> tuple[list[int], list[list[float]]]:
    sizes = draw(several_sizes)
    one_pass = st.lists(costs, min_size=len(sizes), max_size=len(sizes))
    return sizes, draw(st.lists(one_pass, min_size=1, max_size=8))


def shape(fit: Fit) -> list[float]:
    return [fit.exponent, fit.low, fit.high, *fit.growths]


# Laws of the fit


@unhurried
@given(several_sizes, st.floats(-3, 6), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8))
def test_an_exact_power_gives_its_exponent(sizes: list[int], exponent: float, constants: list[float]) -> None:
    passes = [[constant * size**exponent for size in sizes] for constant in constants]
    fit = fit_power(State.MISS, sizes, passes)
    assert [fit.exponent, fit.low, fit.high] == pytest.approx([exponent] * 3, abs=1e-6)
    steps = [(later / size) ** exponent for size, later in pairwise(sizes)]
    assert fit.growths == pytest.approx(steps)
    assert fit.passes == len(constants)


@unhurried
@given(some_passes(), st.floats(1e-6, 1e6))
def test_the_unit_of_cost_does_not_matter(given_: tuple[list[int], list[list[float]]], unit: float) -> None:
    sizes, passes = given_
    other = [[cost * unit for cost in one] for one in passes]
    assert shape(fit_power(State.HIT, sizes, other)) == pytest.approx(
        shape(fit_power(State.HIT, sizes, passes)), rel=1e-6, abs=1e-6
    )


@unhurried
@given(
    st.integers(2, 1000),
    st.lists(st.lists(costs, min_size=3, max_size=3), min_size=1, max_size=8),
)
def test_the_unit_of_size_does_not_matter(unit: int, passes: list[list[float]]) -> None:
    other = [size * unit for size in SIZES]
    assert shape(fit_power(State.HIT, other, passes)) == pytest.approx(
        shape(fit_power(State.HIT, SIZES, passes)), rel=1e-6, abs=1e-6
    )


@unhurried
@given(some_passes(), st.randoms())
def test_the_order_of_the_passes_does_not_matter(
    given_: tuple[list[int], list[list[float]]], random: object
) -> None:
    sizes, passes = given_
    shuffled = list(passes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fit_power(State.HIT, sizes, shuffled) == fit_power(State.HIT, sizes, passes)


@unhurried
@given(some_passes())
def test_the_exponent_lies_in_its_interval(given_: tuple[list[int], list[list[float]]]) -> None:
    fit = fit_power(State.HIT, *given_)
    assert fit.low <= fit.exponent <= fit.high
    assert all(growth > 0 for growth in fit.growths)


def test_one_wild_pass_moves_the_interval_and_not_the_exponent() -> None:
    passes = [[10.0, 20.0, 40.0]] * 6
    fit = fit_power(State.MISS, SIZES, [*passes, [10.0, 200.0, 4000.0]])
    assert fit.exponent == pytest.approx(1)
    assert (fit.low, fit.high) == pytest.approx((1, math.log2(20)))
    assert fit.growths == pytest.approx((2, 2))


# Samples


def figures(state: State, *ns: int, note: str = "", refused: str = "") -> Figures:
    refusals = (Refused(refused, 1),) if refused else ()
    return Figures(1, (Samples(state, ns, refusals),), (note,) if note else ())


def both(miss: int, hit: int) -> Figures:
    return Figures(1, (Samples(State.MISS, (miss,)), Samples(State.HIT, (hit,))))


def taken_by(
    exponents: Sequence[tuple[float, float]], sizes: Sequence[int] = SIZES
) -> Mapping[int, Sequence[Figures]]:
    """One pass for each pair of exponents: of the miss and of the hit."""
    return {
        size: [both(round(1e9 * size**miss), round(1e8 * size**hit)) for miss, hit in exponents]
        for size in sizes
    }


def judged(miss: Sequence[float], hit: Sequence[float], limit: float | None) -> Scaling:
    return fit_scaling("stack", taken_by(list(zip(miss, hit, strict=True))), limit)


def test_points_are_medians_of_all_samples_the_smallest_size_first() -> None:
    taken = {
        16: [both(miss, hit) for miss, hit in zip(range(30, 37), range(3, 10), strict=True)],
        8: [both(miss, hit) for miss, hit in zip(range(10, 17), range(1, 8), strict=True)],
    }
    points = fit_scaling("stack", taken).points
    assert [(point.size, point.miss_ns, point.hit_ns) for point in points] == [(8, 13, 4), (16, 33, 6)]


def test_each_state_has_a_fit_of_its_own() -> None:
    scaling = judged([1.0] * PASSES, [0.5] * PASSES, None)
    assert scaling.miss.exponent == pytest.approx(1)
    assert scaling.hit.exponent == pytest.approx(0.5, abs=1e-6)
    assert (scaling.miss.state, scaling.hit.state) == (State.MISS, State.HIT)
    assert (scaling.miss.passes, scaling.miss.verdict) == (PASSES, LimitVerdict.NO_LIMIT)


def test_the_cost_of_a_pass_is_its_median() -> None:
    taken = {size: [figures(State.HIT, size, size, 1000 * size)] * PASSES for size in SIZES}
    assert fit_scaling("stack", taken).hit.exponent == pytest.approx(1)
    assert [point.hit_ns for point in fit_scaling("stack", taken).points] == list(SIZES)


def test_a_callable_that_never_propagates_has_its_calls_fitted_and_no_miss() -> None:
    remark = "unpropagated: it has no miss"
    one = {size: Figures(1, (Samples(State.CALL, (size,)),), remarks=(remark,)) for size in SIZES}
    scaling = fit_scaling("move", {size: [one[size]] * PASSES for size in SIZES}, 1.3)
    assert scaling.hit.state is State.CALL
    assert scaling.hit.exponent == pytest.approx(1)
    assert math.isnan(scaling.miss.exponent)
    assert scaling.miss.why_not == f"no miss was measured ({remark})"
    assert (scaling.miss.verdict, scaling.hit.verdict) == (LimitVerdict.ABSENT, LimitVerdict.PASSED)
    assert complaint(judge(scaling)) == ""
    assert [point.hit_ns for point in scaling.points] == list(SIZES)


def test_a_callable_that_never_hits_has_its_misses_fitted() -> None:
    note = "never hits"
    taken = {size: [figures(State.MISS, size, note=note)] * PASSES for size in SIZES}
    scaling = fit_scaling("new shapes", taken, 1.3)
    assert scaling.miss.exponent == pytest.approx(1)
    assert scaling.hit.why_not == f"no hit was measured ({note})"
    assert complaint(judge(scaling)) == ""


def test_misses_that_were_all_refused_are_not_taken_for_a_callable_that_has_none() -> None:
    refused = Samples(State.MISS, (), (Refused("propagation did not run", 3),))
    taken = {size: [Figures(1, (refused, Samples(State.HIT, (5,))))] * PASSES for size in SIZES}
    scaling = fit_scaling("memoized", taken, 1.3)
    assert (scaling.miss.verdict, scaling.hit.verdict) == (LimitVerdict.MISSING, LimitVerdict.PASSED)
    assert complaint(judge(scaling)) == (
        "memoized: not judged\n"
        "max_exponent=1.3: miss not fitted: only 0 of 7 passes measured a miss at every size "
        "(propagation did not run)"
    )


def test_hits_and_calls_are_not_fitted_together() -> None:
    states = {8: State.CALL, 16: State.HIT, 32: State.HIT}
    taken = {size: [figures(states[size], size)] * PASSES for size in SIZES}
    scaling = fit_scaling("mixed", taken, 1.3)
    assert math.isnan(scaling.hit.exponent)
    assert scaling.hit.why_not == "only 0 of 7 passes measured a hit at every size"
    assert scaling.points[0].hit_ns is None
    assert "only 0 of 7 passes measured a hit at every size" in complaint(judge(scaling))


@pytest.mark.parametrize("complete", range(PASSES + 1))
def test_an_exponent_needs_five_passes_that_measured_every_size(complete: int) -> None:
    passes = [figures(State.HIT, 8)] * complete + [figures(State.HIT, refused="it ran again")] * (
        PASSES - complete
    )
    taken = {8: passes, 16: [figures(State.HIT, 16)] * PASSES}
    scaling = fit_scaling("stack", taken, 1.3)
    if complete >= MIN_PASSES:
        assert scaling.hit.passes == complete
        assert scaling.hit.exponent == pytest.approx(1)
        assert complaint(judge(scaling)) == ""
    else:
        why = f"only {complete} of 7 passes measured a hit at every size (it ran again)"
        assert scaling.hit.why_not == why
        assert scaling.hit.verdict is LimitVerdict.MISSING
        assert complaint(judge(scaling)) == f"stack: not judged\nmax_exponent=1.3: hit not fitted: {why}"


def test_a_cost_of_nothing_is_not_fitted() -> None:
    taken = {8: [figures(State.HIT, 0)] * PASSES, 16: [figures(State.HIT, 5)] * PASSES}
    assert fit_scaling("stack", taken).hit.why_not == "only 0 of 7 passes measured a hit at every size"


# The limit

FLAT = [0.0] * PASSES


@pytest.mark.parametrize(
    ("exponents", "verdict"),
    [
        ([1.0] * 7, LimitVerdict.PASSED),
        ([1.5] * 7, LimitVerdict.FAILED),
        ([1.4, 1.31, 1.6, 1.5, 1.5, 1.5, 1.5], LimitVerdict.FAILED),
        ([1.4, 1.29, 1.6, 1.5, 1.5, 1.5, 1.5], LimitVerdict.INCONCLUSIVE),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.31], LimitVerdict.INCONCLUSIVE),
    ],
)
def test_a_limit_is_held_against_the_whole_interval(exponents: list[float], verdict: LimitVerdict) -> None:
    on_miss, on_hit = judged(exponents, FLAT, 1.3), judged(FLAT, exponents, 1.3)
    assert (on_miss.miss.verdict, on_miss.hit.verdict) == (verdict, LimitVerdict.PASSED)
    assert (on_hit.hit.verdict, on_hit.miss.verdict) == (verdict, LimitVerdict.PASSED)
    for scaling in (on_miss, on_hit):
        assert bool(complaint(judge(scaling))) == (verdict is LimitVerdict.FAILED)


@unhurried
@given(st.lists(st.floats(-1, 3), min_size=PASSES, max_size=PASSES), st.floats(0.01, 3))
def test_a_limit_fails_only_what_lies_above_it_in_every_pass(exponents: list[float], limit: float) -> None:
    fit = judged(exponents, FLAT, limit).miss
    assert (fit.verdict is LimitVerdict.FAILED) == (fit.low > limit)
    assert (fit.verdict is LimitVerdict.PASSED) == (fit.high < limit)


def test_a_complaint_names_state_exponent_interval_limit_and_costs() -> None:
    taken = {
        8: [both(10_000, 1_000)] * PASSES,
        16: [both(20_000, 1_000)] * PASSES,
        32: [both(40_000, 1_000)] * PASSES,
    }
    assert complaint(judge(fit_scaling("stack", taken, 0.5))) == (
        "stack: over its limits\nmax_exponent=0.5: miss grows as size^1.00 (1.00 to 1.00 in 7 passes), "
        "all of it above the limit: 8: 10.0 us, 16: 20.0 us, 32: 40.0 us"
    )


def test_a_complaint_of_both_states_has_both_costs() -> None:
    text = complaint(judge(judged([2.0] * PASSES, [1.5] * PASSES, 0.5)))
    assert "miss grows as size^2.00" in text
    assert "hit grows as size^1.50" in text
    assert text.count("8: ") == 2


def test_nothing_fitted_is_a_complaint_and_only_with_a_limit() -> None:
    taken = {size: [Figures(notes=("runs once",))] * PASSES for size in SIZES}
    assert complaint(judge(fit_scaling("t_", taken))) == ""
    assert complaint(judge(fit_scaling("t_", taken, 1.3))) == (
        "t_: not judged\nmax_exponent=1.3: miss not fitted: no miss was measured (runs once); "
        "hit not fitted: no hit was measured (runs once)"
    )


# Merging


def test_samples_of_all_passes_are_merged_by_state() -> None:
    merged = merge(
        [
            Figures(
                2,
                (Samples(State.MISS, (1, 2)), Samples(State.HIT, (3,), (Refused("again", 2),))),
                ("n",),
            ),
            Figures(
                3, (Samples(State.HIT, (4,), (Refused("again", 1), Refused("other", 1))),), ("n",), ("r",)
            ),
        ]
    )
    assert merged == Figures(
        5,
        (
            Samples(State.MISS, (1, 2)),
            Samples(State.HIT, (3, 4), (Refused("again", 3), Refused("other", 1))),
        ),
        ("n",),
        ("r",),
    )


@unhurried
@given(st.lists(st.lists(st.integers(0, 10**9), max_size=5), max_size=8))
def test_no_sample_is_lost_or_moved_by_merging(passes: list[list[int]]) -> None:
    merged = merge([figures(State.HIT, *ns) for ns in passes])
    assert [ns for samples in merged.samples for ns in samples.ns] == [ns for one in passes for ns in one]
    assert merged.rounds == len(passes)


# What is shown


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
