"""Callables at several sizes: measurement, fit, limits and output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.comparing.scaling import (
    PASSES,
    Fit,
    Scaling,
    document,
    fit_power,
    fit_scaling,
    judge,
    run_and_measure_sizes,
)
from pytest_dtdispatch.core.measurement import Figures, Refused, Samples, State, merge
from pytest_dtdispatch.core.verdicts import Verdict, complaint
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.replay.repeat import run_call
from pytest_dtdispatch.report.document import Paragraph, Tone, View
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import Make

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

SIZES = (8, 16, 32)
several_sizes = st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True).map(sorted)


def figures(state: State, *ns: int, refused: str = "", **texts: Any) -> Figures:
    return Figures(1, (Samples(state, ns, (Refused(refused, 1),) if refused else ()),), **texts)


def both(miss: float | str, hit: float) -> Figures:
    misses = figures(State.MISS, refused=miss) if isinstance(miss, str) else figures(State.MISS, round(miss))
    return Figures(1, (*misses.samples, Samples(State.HIT, (round(hit),))))


def grown(miss: Sequence[float], hit: Sequence[float], limit: float | None) -> Scaling:
    """Fit passes whose costs grow by these exponents."""
    pairs = list(zip(miss, hit, strict=True))
    sizes = reversed(SIZES)
    return fit_scaling("f", {n: [both(1e9 * n**m, 1e8 * n**h) for m, h in pairs] for n in sizes}, limit)


# The fit


@given(several_sizes, st.floats(-3, 6), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8))
def test_exact_power_has_its_exponent(sizes: list[int], exponent: float, constants: list[float]) -> None:
    fit = fit_power(State.MISS, sizes, [[c * size**exponent for size in sizes] for c in constants])
    assert [fit.exponent, fit.low, fit.high] == pytest.approx([exponent] * 3, abs=1e-6)
    assert fit.growths == pytest.approx([(later / size) ** exponent for size, later in pairwise(sizes)])
    assert fit.passes == len(constants)


def test_outlier_pass_widens_interval_but_not_exponent() -> None:
    fit = fit_power(State.MISS, SIZES, [*[[10.0, 20.0, 40.0]] * 6, [10.0, 200.0, 4000.0]])
    assert (fit.exponent, fit.low, fit.high) == pytest.approx((1, 1, math.log2(20)))
    assert fit.growths == pytest.approx((2, 2))


NEITHER, FEW = "no {} was measured", "only {} of 7 passes measured a {} at every size"
NO_MISS, NO_HIT = NEITHER.format("miss"), FEW.format(0, "hit")


UNPROPAGATED: Any = {"notes": ("unpropagated",)}
RAN = figures(State.HIT, refused="ran")


@pytest.mark.parametrize(
    ("passes", "no_miss", "no_hit", "failing"),
    [
        (lambda n: [figures(State.CALL, n, **UNPROPAGATED)] * 7, f"{NO_MISS} (unpropagated)", "", ""),
        (lambda n: [figures(State.MISS, n)] * 7, "", NEITHER.format("hit"), ""),
        # The cost of a pass is its median, and five passes are sufficient.
        (lambda n: [figures(State.HIT, n, n, 99 * n)] * 5 + [figures(State.HIT)] * 2, NO_MISS, "", ""),
        (lambda n: [figures(State.HIT, n)] * 4 + [RAN] * 3, NO_MISS, f"{FEW.format(4, 'hit')} (ran)", "hit"),
        # Refused misses are not treated as absent.
        (lambda n: [both("ran", n)] * 7, f"{FEW.format(0, 'miss')} (ran)", "", "miss"),
        # Hits and calls are not fitted together; a cost of 0 is not fitted.
        (lambda n: [figures(State.CALL if n == 8 else State.HIT, n)] * 7, NO_MISS, NO_HIT, "hit"),
        (lambda n: [figures(State.HIT, n - 8)] * 7, NO_MISS, NO_HIT, "hit"),
        (lambda n: [Figures()] * 7, NO_MISS, NEITHER.format("hit"), "miss hit"),
    ],
)
def test_unfitted_state_has_a_reason_and_may_fail(
    passes: Callable[[int], list[Figures]], no_miss: str, no_hit: str, failing: str
) -> None:
    scaling = fit_scaling("f", {size: passes(size) for size in SIZES}, 1.3)
    assert (scaling.miss.why_not, scaling.hit.why_not) == (no_miss, no_hit)
    for fit in scaling.fits:
        assert math.isnan(fit.exponent) if fit.why_not else fit.exponent == pytest.approx(1)
    failed = "; ".join(str(getattr(scaling, name)) for name in failing.split())
    assert complaint(judge(scaling)) == (f"f: not judged\nmax_exponent=1.3: {failed}" if failed else "")


def test_samples_of_all_passes_are_merged_by_state() -> None:
    first = Figures(2, (Samples(State.MISS, (1, 2)), *figures(State.HIT, 3, refused="again").samples), ("n",))
    refused = (Refused("again", 1), Refused("other", 1))
    merged = merge([first, Figures(3, (Samples(State.HIT, (4,), refused),), ("n",), ("r",))])
    hits = Samples(State.HIT, (3, 4), (Refused("again", 2), Refused("other", 1)))
    assert merged == Figures(5, (Samples(State.MISS, (1, 2)), hits), ("n",), ("r",))


# The limit


@pytest.mark.parametrize(
    ("exponents", "verdict", "end", "tone"),
    [
        ([1.0] * 7, Verdict.PASSED, "; below max_exponent=1.3", Tone.GOOD),
        ([1.4, 1.31, *[1.5] * 5], Verdict.REGRESSED, "; above max_exponent=1.3", Tone.BAD),
        ([1.4, 1.29, *[1.5] * 5], Verdict.INCONCLUSIVE, "; inconclusive: * lies in between", Tone.NOTICE),
        ([*[1.0] * 6, 1.31], Verdict.INCONCLUSIVE, "; inconclusive: * lies in between", Tone.NOTICE),
    ],
)
def test_limit_is_compared_with_the_whole_interval(
    exponents: list[float], verdict: Verdict, end: str, tone: Tone
) -> None:
    flat = [0.0] * PASSES
    assert list(judge(grown(exponents, flat, None))) == []
    for number, scaling in enumerate((grown(exponents, flat, 1.3), grown(flat, exponents, 1.3)), 1):
        assert (scaling.sizes, scaling.miss.passes) == (SIZES, PASSES)
        [judged] = judge(scaling)
        assert judged.verdict is verdict
        assert bool(complaint([judged])) == (verdict is Verdict.REGRESSED)
        block = document({"test": [scaling]}, View()).blocks[number]
        assert isinstance(block, Paragraph)
        [span] = block.spans
        assert span.text.endswith(end.replace("*", "max_exponent=1.3"))
        assert span.tone is tone


@pytest.mark.parametrize(
    ("value", "text"), [(0.995, "0.99"), (-0.001, "0.00"), (-0.25, "-0.25"), (12, "12.00")]
)
def test_exponents_have_two_decimals_and_no_negative_zero(value: float, text: str) -> None:
    assert str(Fit(State.HIT, value, 0, 20)).startswith(f"hit grows as size^{text} ")


# Measurement


def measure(
    make: Callable[[int], Any], *sizes: int, rounds: int = 1, run: Any = run_call
) -> dict[int, list[Figures]]:
    plan = Plan(rounds, repeat=2, max_time_s=60.0)
    measured, sources = run_and_measure_sizes(run, make, sizes, ShardingCaches(), plan)
    assert list(measured) == list(sources) == sorted(sizes)
    return measured


@pytest.mark.parametrize(("rounds", "in_a_pass"), [(1, 1), (7, 1), (20, 3)])
def test_rounds_are_divided_among_the_passes(shard: Make, rounds: int, in_a_pass: int) -> None:
    a = shard(8, 8)
    for passes in measure(lambda n: lambda: torch.stack([a] * n), 2, 3, rounds=rounds).values():
        found = [{each.state: each.count for each in one.samples if each.ns} for one in passes]
        assert found == [{State.MISS: in_a_pass, State.HIT: 2 * in_a_pass}] * PASSES


def test_sizes_are_prepared_largest_first_then_measured_alternately() -> None:
    seen: list[str] = []

    def make(size: int) -> Callable[[], Any]:
        seen.append(f"make {size}")
        return lambda: seen.append(str(size))

    measure(make, 1, 2, 3)
    in_turn = [key for key, _ in groupby(seen)]
    assert in_turn[:6] == ["make 3", "3", "make 2", "2", "make 1", "1"]
    # Repeated neighbors are merged.
    passes = ["321", "123", "213", "312", "132", "231", "321"]
    assert in_turn[6:] == [size for size, _ in groupby("".join(passes))]


def test_each_size_has_effects_of_one_call(shard: Make) -> None:
    a = shard(8, 8, placement=Replicate())
    a.to_local().fill_(1.0)

    torch.manual_seed(3)
    measure(lambda size: lambda: (a.mul_(size), a.add_(size), torch.rand(3)), 2, 3, 5)
    assert torch.equal(a.to_local(), torch.full((8, 8), ((1.0 * 5 + 5) * 3 + 3) * 2 + 2))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(9)
    assert torch.equal(drawn, torch.rand(1))


def test_factory_must_return_callable_and_errors_propagate() -> None:
    with pytest.raises(MeasurementError, match=r"make\(2\) returned 5: it must return a callable without"):
        measure(lambda size: 5, 1, 2)
    with pytest.raises(ZeroDivisionError):
        measure(lambda size: lambda: 1 // 0, 1, 2)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("drift", [-0.02, 0.02])
def test_drifting_machine_does_not_bias_the_exponent(exponent: float, drift: float) -> None:
    clock = itertools.count(1)

    def scripted(call: Callable[[], int]) -> tuple[None, Any]:
        size = call()
        take = lambda *_: figures(State.HIT, round(1e9 * size**exponent * (1 + drift * next(clock))))  # noqa: E731
        replay = SimpleNamespace(settle_again=lambda: None)
        return None, SimpleNamespace(mesh="", measure=take, replay=replay)

    passes = measure(lambda size: lambda: size, 8, 16, 32, 64, run=scripted)
    fit = fit_scaling("drifting", passes).hit
    assert fit.low < exponent < fit.high
    assert fit.exponent == pytest.approx(exponent, abs=0.05)
