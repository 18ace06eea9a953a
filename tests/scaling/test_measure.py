"""A callable at several sizes: measured in turn, and left as after one call at each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.core.measurement import Figures, Samples, State
from pytest_dtdispatch.errors import ScalingError
from pytest_dtdispatch.measuring.calls import RanCall
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.scaling import measure as scaling_module
from pytest_dtdispatch.scaling.judge import fit_scaling
from pytest_dtdispatch.scaling.measure import PASSES, AtSize, run_and_measure_sizes
from pytest_dtdispatch.torchapi.ops import open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = pytest.mark.torch

Make = Callable[..., Any]
FEW = Plan(rounds=1, repeat=2)


def measure(make: Callable[[int], Callable[[], Any]], *sizes: int, plan: Plan = FEW) -> dict[int, AtSize]:
    taken = run_and_measure_sizes(make, sizes, ShardingCaches(), plan)
    assert open_modes() == []
    return taken


def counts(figures: Figures) -> dict[State, int]:
    return {samples.state: len(samples.ns) for samples in figures.samples if samples.ns}


@pytest.mark.parametrize(("rounds", "in_a_pass"), [(1, 1), (7, 1), (8, 2), (20, 3)])
def test_the_rounds_asked_for_are_shared_out_to_the_passes(shard: Make, rounds: int, in_a_pass: int) -> None:
    a = shard(8, 8)
    taken = measure(lambda n: lambda: torch.stack([a] * n), 2, 3, plan=Plan(rounds, repeat=2))
    for at_size in taken.values():
        expected = {State.MISS: in_a_pass, State.HIT: 2 * in_a_pass}
        assert [counts(figures) for figures in at_size.passes] == [expected] * PASSES


def test_sizes_come_back_rising_with_the_mesh_of_each(shard: Make) -> None:
    a = shard(8, 8)
    taken = measure(lambda n: lambda: torch.stack([a] * n), 3, 5, 2)
    assert [(size, at_size.place) for size, at_size in taken.items()] == [(2, "4"), (3, "4"), (5, "4")]


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
    for at_size in taken.values():
        assert {figures.notes for figures in at_size.passes} == {
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
    monkeypatch: pytest.MonkeyPatch, exponent: float, drift: float
) -> None:
    clock = [0]

    class Scripted(RanCall):
        def __init__(self, size: int) -> None:
            self.place, self.once, self.size = "", "", size

        def settle_again(self) -> None:
            pass  # it changes nothing

        def measure(self, caches: ShardingCaches, plan: Plan) -> Figures:
            clock[0] += 1
            cost = 1e9 * self.size**exponent * (1 + drift * clock[0])
            return Figures(1, (Samples(State.HIT, (round(cost),)),))

    monkeypatch.setattr(scaling_module, "run_call", lambda size: (None, Scripted(size())))
    taken = measure(lambda size: lambda: size, 8, 16, 32, 64)
    fit = fit_scaling("drifting", {size: at_size.passes for size, at_size in taken.items()}).hit
    assert fit.low < exponent < fit.high
    assert fit.exponent == pytest.approx(exponent, abs=0.05)
