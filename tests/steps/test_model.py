"""What was counted of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.steps.events import Miss, QueriedCache, Redistribution, Wrapping
from pytest_dtdispatch.steps.model import StepCounts, Steps

MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "first call of this op", QueriedCache.NATIVE)
AT = CodePlace("/train.py", 3, "layers.0", Phase.FORWARD)
WRAPPED = Wrapping("from_local", "f32[8,8]", ("S0",), AT)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0", "R"), ("R", "R"), 256)


def details_of(count: float) -> tuple[str, ...]:
    assert isinstance(count, Count)
    return count.details


def test_calls_are_hits_misses_and_what_asks_no_cache() -> None:
    step = StepCounts(hits=3, missed=(MISS, MISS), unpropagated=1)
    assert (step.calls, step.misses) == (6, 2)


def test_totals_are_over_all_steps_and_leave_the_warm_up_out() -> None:
    step = StepCounts(
        hits=2,
        missed=(MISS,),
        redistributions=(GATHER,),
        collectives=(("all_gather", 2), ("all_reduce", 1)),
        wraps=(WRAPPED, WRAPPED),
        unwraps=(WRAPPED,),
        cache_growth=(("native", 1), ("FakeTensor", 3)),
        spec_growth=4,
        dtensor_growth=5,
        host_memory_growth_bytes=4096,
    )
    steps = Steps("train", (step, step, step), (step, step))
    assert (steps.calls, steps.hits, steps.misses) == (6, 4, 2)
    assert steps.collectives == {"all_gather": 4, "all_reduce": 2}
    assert steps.cache_growth == {"native": 2, "FakeTensor": 6}
    assert (steps.spec_growth, steps.dtensor_growth, steps.host_memory_growth_bytes) == (8, 10, 8192)
    assert steps.missed == (MISS, MISS)
    assert steps.misses_per_step == 1
    assert steps.redistributes_per_step == 1
    assert steps.collectives_per_step == 3
    assert (steps.wraps_per_step, steps.unwraps_per_step) == (2, 1)
    assert details_of(steps.wraps_per_step) == (
        "from_local: f32[8,8] S0, at /train.py:3 in layers.0 (forward) (twice in each of steps 1-2)",
    )
    assert steps.cache_growth_per_step == 3, "of the cache that grew most"
    assert steps.spec_growth_per_step == 4
    assert steps.dtensor_growth_per_step == 5


def test_where_nothing_is_measured_every_count_is_0() -> None:
    steps = Steps("train", (), ())
    counts = (
        steps.calls,
        steps.misses_per_step,
        steps.redistributes_per_step,
        steps.collectives_per_step,
        steps.wraps_per_step,
        steps.unwraps_per_step,
        steps.cache_growth_per_step,
        steps.spec_growth_per_step,
        steps.dtensor_growth_per_step,
        steps.host_memory_growth_bytes,
    )
    assert counts == (0,) * len(counts)
    assert not steps.unsteady


def test_memory_that_the_system_does_not_tell_is_none() -> None:
    assert Steps("train", (), (StepCounts(),)).host_memory_growth_bytes is None


def test_a_place_is_no_part_of_what_makes_two_runs_equal() -> None:
    elsewhere = replace(WRAPPED, place=replace(AT, line=4))
    assert elsewhere == WRAPPED
    assert elsewhere.origin != WRAPPED.origin, "it is another cause"


def test_memory_is_no_part_of_what_makes_two_runs_equal() -> None:
    step = StepCounts(hits=1, host_memory_growth_bytes=4096)
    assert step == replace(step, host_memory_growth_bytes=0)
    assert step != replace(step, hits=2)


def test_a_step_with_another_number_of_calls_is_unsteady_and_both_counts_are_told() -> None:
    three, four = StepCounts(hits=3), StepCounts(hits=4)
    assert (
        Steps("train", (four,), (three, three, four, three)).unsteady == "3 calls in step 1 and 4 in step 3"
    )
    assert not Steps("train", (four,), (three, three)).unsteady, "the warm-up may differ"


def test_a_count_lists_equal_misses_once() -> None:
    steps = Steps("train", (), (StepCounts(missed=(MISS, MISS)), StepCounts(missed=(MISS,))))
    assert steps.misses_per_step == 1.5
    assert details_of(steps.misses_per_step) == (f"{MISS} (1 to 2 times in each of steps 1-2)",)


def test_a_redistribution_tells_the_dimensions_that_change() -> None:
    assert GATHER.mesh_dims == (0,)
    assert str(GATHER) == "mm.default: f32[8,8] S0 R -> R R on mesh dimension 0, 256 bytes"
    both = replace(GATHER, source=("S0", "S1"), target=("R", "R"))
    assert "on mesh dimensions 0, 1" in str(both)


@pytest.mark.parametrize(("growth", "text"), [(1, "native: +1 over 1 step"), (-2, "native: -2 over 1 step")])
def test_caches_that_grew_are_listed(growth: int, text: str) -> None:
    steps = Steps("train", (), (StepCounts(cache_growth=(("native", growth), ("python", 0))),))
    assert details_of(steps.cache_growth_per_step) == (text,)
