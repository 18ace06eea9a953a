"""Callables at several sizes: what is measured, fitted, judged and shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples, State, merge
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import ScalingError
from pytest_dtdispatch.gates.limits import complaint
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeat import run_call
from pytest_dtdispatch.report.document import Paragraph, Tone, View
from pytest_dtdispatch.scaling import (
    MIN_PASSES,
    PASSES,
    Fit,
    Point,
    Scaling,
    document,
    fit_power,
    fit_scaling,
    judge,
    run_and_measure_sizes,
    run_sizes,
)
from pytest_dtdispatch.torchapi.ops import open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.rendered import lines_of

pytestmark = pytest.mark.torch

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

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
    assert scaling.miss.passes == PASSES


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
    assert (scaling.miss.is_absent, scaling.hit.verdict(1.3)) == (True, Verdict.PASSED)
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
    assert (scaling.miss.is_absent, scaling.hit.verdict(1.3)) == (False, Verdict.PASSED)
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
        assert not scaling.hit.is_absent
        assert complaint(judge(scaling)) == f"stack: not judged\nmax_exponent=1.3: hit not fitted: {why}"


def test_a_cost_of_nothing_is_not_fitted() -> None:
    taken = {8: [figures(State.HIT, 0)] * PASSES, 16: [figures(State.HIT, 5)] * PASSES}
    assert fit_scaling("stack", taken).hit.why_not == "only 0 of 7 passes measured a hit at every size"


# The limit

FLAT = [0.0] * PASSES


@pytest.mark.parametrize(
    ("exponents", "verdict"),
    [
        ([1.0] * 7, Verdict.PASSED),
        ([1.5] * 7, Verdict.REGRESSED),
        ([1.4, 1.31, 1.6, 1.5, 1.5, 1.5, 1.5], Verdict.REGRESSED),
        ([1.4, 1.29, 1.6, 1.5, 1.5, 1.5, 1.5], Verdict.INCONCLUSIVE),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.31], Verdict.INCONCLUSIVE),
    ],
)
def test_a_limit_is_held_against_the_whole_interval(exponents: list[float], verdict: Verdict) -> None:
    on_miss, on_hit = judged(exponents, FLAT, 1.3), judged(FLAT, exponents, 1.3)
    for scaling in (on_miss, on_hit):
        [judged_as] = judge(scaling)
        assert judged_as.verdict is verdict
        assert bool(complaint([judged_as])) == (verdict is Verdict.REGRESSED)


@unhurried
@given(st.lists(st.floats(-1, 3), min_size=PASSES, max_size=PASSES), st.floats(0.01, 3))
def test_a_limit_fails_only_what_lies_above_it_in_every_pass(exponents: list[float], limit: float) -> None:
    fit = judged(exponents, FLAT, limit).miss
    assert (fit.verdict(limit) is Verdict.REGRESSED) == (fit.low > limit)
    assert (fit.verdict(limit) is Verdict.PASSED) == (fit.high < limit)


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


def scaling(high: float = 1.35, limit: float | None = None) -> Scaling:
    absent = Fit(State.MISS, why_not="no miss was measured", is_absent=True)
    hit = Fit(State.HIT, 0.931, 0.85, high, (1.8, 1.934), 7)
    return Scaling("stack", (Point(8, None, 5), Point(16, None, 9)), absent, hit, limit)


def test_a_scaling_is_a_title_and_a_line_a_state() -> None:
    assert lines_of(document({"test_a.py::test_a": [scaling()], "test_b": ()}, View())) == [
        "test_a.py::test_a: stack at sizes 8, 16",
        "  miss not fitted: no miss was measured",
        "  hit grows as size^0.93 (0.85 to 1.35 in 7 passes), from size to size x1.80, x1.93",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_width_and_lose_nothing(width: int) -> None:
    said = document({"test_a.py::test_a": [scaling(limit=1.4)]}, View())
    narrow, wide = lines_of(said, width), lines_of(said, 500)
    assert max(map(len, narrow)) < width
    assert " ".join(narrow).split() == " ".join(wide).split()


@pytest.mark.parametrize(
    ("limit", "end", "tone"),
    [
        (1.4, "; below max_exponent=1.4", Tone.GOOD),
        (0.5, "; above max_exponent=0.5", Tone.BAD),
        (1.3, "; inconclusive: max_exponent=1.3 lies in between", Tone.NOTICE),
    ],
)
def test_a_limit_and_its_verdict_are_shown(limit: float, end: str, tone: Tone) -> None:
    *_, absent, last = document({"test": [scaling(limit=limit)]}, View()).blocks
    assert isinstance(absent, Paragraph)
    assert isinstance(last, Paragraph)
    assert absent.spans[0].text.endswith(f"; cannot be held against max_exponent={limit:g}")
    [span] = last.spans
    assert span.text.endswith("x1.80, x1.93" + end)
    assert (absent.spans[0].tone, span.tone) == (Tone.NOTICE, tone)


@pytest.mark.parametrize(
    ("value", "text"), [(0.995, "0.99"), (-0.001, "0.00"), (-0.25, "-0.25"), (12, "12.00")]
)
def test_exponents_have_two_decimals_and_no_negative_zero(value: float, text: str) -> None:
    assert str(Fit(State.HIT, value, 0, 20)).startswith(f"hit grows as size^{text} ")


def test_what_was_not_measured_passes_every_limit_and_has_no_points() -> None:
    found = run_sizes(lambda size: lambda: None, (8, 16), "stack")
    assert found.points == ()
    assert [(fit.state, fit.exponent) for fit in found.fits] == [(State.MISS, 0), (State.HIT, 0)]


# What is measured


Make = Callable[..., Any]
FEW = Plan(rounds=1, repeat=2)


def measure(
    make: Callable[[int], Callable[[], Any]], *sizes: int, plan: Plan = FEW, run: Any = run_call
) -> dict[int, list[Figures]]:
    measured, places = run_and_measure_sizes(run, make, sizes, ShardingCaches(), plan)
    assert list(measured) == list(places) == sorted(sizes)
    assert open_modes() == []
    return measured


def samples_by_state(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples if samples.ns}


@pytest.mark.parametrize(("rounds", "in_a_pass"), [(1, 1), (7, 1), (8, 2), (20, 3)])
def test_the_rounds_asked_for_are_shared_out_to_the_passes(shard: Make, rounds: int, in_a_pass: int) -> None:
    a = shard(8, 8)
    taken = measure(lambda n: lambda: torch.stack([a] * n), 2, 3, plan=Plan(rounds, repeat=2))
    for passes in taken.values():
        expected = {State.MISS: in_a_pass, State.HIT: 2 * in_a_pass}
        assert [samples_by_state(figures) for figures in passes] == [expected] * PASSES


def test_each_size_is_made_and_called_from_the_largest_down_then_measured_to_and_fro(shard: Make) -> None:
    a, seen = shard(8, 8), []

    def make(size: int) -> Callable[[], Any]:
        seen.append(f"make {size}")

        def call() -> Any:
            seen.append(str(size))
            return a + size

        return call

    measure(make, 1, 2, 3)
    in_turn = [key for key, _ in groupby(seen)]
    made, measured = in_turn[:6], in_turn[6:]
    assert made == ["make 3", "3", "make 2", "2", "make 1", "1"]
    # Neighbours are one: each pass starts at the size that the one before it ended with.
    assert measured == ["3", "2", "1", *["2", "3", "2", "1"] * (PASSES // 2)]


@pytest.mark.parametrize("measured", [False, True])
def test_what_is_written_and_drawn_is_written_and_drawn_once_at_each_size(
    shard: Make, measured: bool
) -> None:
    a = shard(8, 8, placement=Replicate())
    a.to_local().fill_(1.0)

    def make(size: int) -> Callable[[], Any]:
        def call() -> Any:
            a.mul_(size)
            a.add_(size)
            return torch.rand(3)

        return call

    torch.manual_seed(3)
    if measured:
        measure(make, 2, 3, 5)
    else:
        for size in (5, 3, 2):
            make(size)()
    assert torch.equal(a.to_local(), torch.full((8, 8), ((1.0 * 5 + 5) * 3 + 3) * 2 + 2))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(9)
    assert torch.equal(drawn, torch.rand(1))


def test_what_runs_once_runs_once_at_each_size() -> None:
    plain, ran = torch.ones(2, 3), []

    def make(size: int) -> Callable[[], Any]:
        def call() -> None:
            ran.append(size)
            plain.t_()

        return call

    taken = measure(make, 1, 2)
    assert ran == [2, 1]
    for passes in taken.values():
        assert {figures.notes for figures in passes} == {
            ("runs once: it changed the layout of a tensor that it wrote to",)
        }


@pytest.mark.parametrize("made", [None, 5, torch.ones(1)])
def test_what_is_made_must_be_callable(made: Any) -> None:
    with pytest.raises(ScalingError, match=r"make\(2\) returned .*: it must return a callable without"):
        measure(lambda size: made, 1, 2)


def test_what_making_or_calling_raises_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        measure(lambda size: partial(divmod, 1 // 0, 0), 1, 2)
    with pytest.raises(ZeroDivisionError):
        measure(lambda size: lambda: 1 // 0, 1, 2)
    assert open_modes() == []


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("drift", [-0.02, 0.02])
def test_a_machine_that_drifts_does_not_push_the_interval_off_the_exponent(
    exponent: float, drift: float
) -> None:
    clock = [0]

    class Scripted:
        place = ""

        def __init__(self, size: int) -> None:
            self.size = size

        def settle_again(self) -> None:
            pass  # it changes nothing

        def measure(self, caches: ShardingCaches, plan: Plan) -> Figures:
            clock[0] += 1
            cost = 1e9 * self.size**exponent * (1 + drift * clock[0])
            return Figures(1, (Samples(State.HIT, (round(cost),)),))

    taken = measure(lambda size: lambda: size, 8, 16, 32, 64, run=lambda call: (None, Scripted(call())))
    fit = fit_scaling("drifting", taken).hit
    assert fit.low < exponent < fit.high
    assert fit.exponent == pytest.approx(exponent, abs=0.05)
