"""Methods run the agreed number of calls regardless of their duration, and repeat on all ranks or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.comparing.scaling import run_and_measure_sizes
from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.replay.repeat import run_and_measure_call, run_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import Pace, WallClock
from pytest_dtdispatch.rounds.timing import Subject
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import captured
from tests.scripted_bench import Bench, figures_of

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

SLOW_S = 0.015  # longer than every duration that reduces the number of calls
Step = Callable[[], object]


class OtherRanks:
    """Agreement of ranks on 1 for every number of a step, or on other numbers by the name of the step."""

    def __init__(self, **minima: int) -> None:
        self._minima = {name.replace("_", " "): number for name, number in minima.items()}

    def sync(self, subject: str) -> None:
        """No-op."""

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...]:
        return (self._minima.get(step, 1),) * len(numbers)

    def note(self, trail: Trail) -> None:
        """No-op."""


def plan(**minima: int) -> Plan:
    return Plan(7, 2, max_time_s=0.05, agreement=OtherRanks(**minima))


def calls(step: Step, how: Plan) -> None:
    run_and_measure_call(step, (), None, ShardingCaches(), how)


def compares(step: Step, how: Plan) -> None:
    run_and_measure_variants(Variants("it", {"one": step, "other": lambda: None}), ShardingCaches(), how)


def budgets(step: Step, how: Plan) -> None:
    run_and_measure_budget(step, 1, 4, "it", how.agreement)


def scales(step: Step, how: Plan) -> None:
    def run(fn: Step) -> Any:
        return run_call(fn, agreement=how.agreement)

    run_and_measure_sizes(run, lambda size: step, (1, 2), ShardingCaches(), how)


def compiles(step: Step, how: Plan) -> None:
    def setup() -> None:
        step()

    compilation = Compilation(lambda a: a + a, (torch.ones(2),), backend="eager", setup=setup)
    run_and_measure_compile(compilation, "it", ShardingCaches(), Plan(1, 2, agreement=how.agreement))


METHODS = [calls, compares, budgets, scales, compiles]


@pytest.mark.parametrize("method", METHODS)
def test_number_of_calls_is_independent_of_duration(method: Callable[[Step, Plan], None]) -> None:
    counts = []
    for seconds in (0.0, SLOW_S):
        counts.append(0)

        def step(seconds: float = seconds) -> None:
            counts[-1] += 1
            time.sleep(seconds)

        method(step, plan())
    assert counts[0] == counts[1] > 1


@pytest.mark.parametrize("method", [calls, compares, scales, compiles])
def test_call_unrepeatable_on_another_rank_is_not_repeated(method: Callable[[Step, Plan], None]) -> None:
    ran = []
    method(lambda: ran.append(1), plan(the_repetition=0))
    assert len(ran) == (2 if method is scales else 1)  # one call of each size


def test_op_unrepeatable_on_another_rank_is_not_repeated(shard: Callable[..., Any]) -> None:
    a = shard(8, 8)
    [row] = captured(lambda: a + a, plan=plan(the_repetition=0)).measurements()
    assert row.figures.notes == ("runs once: another rank cannot repeat it",)


def test_lines_are_traced_on_all_ranks_or_none() -> None:
    counts = []
    for may_trace in (0, 1):
        counts.append(0)

        def step() -> None:
            counts[-1] += 1

        run_and_measure_budget(step, 0, 1, "it", OtherRanks(the_tracer=may_trace))
    assert counts[1] - counts[0] == 3  # one step before two traced ones


def test_ranks_agree_on_the_pace_of_a_sampler() -> None:
    class Paced(WallClock):
        def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace:
            return Pace(4, 5, 6, 7)

    bench = Bench()
    how = Plan(sampler=Paced(), agreement=OtherRanks(the_pace=3))
    figures = figures_of(Rounds(Subject(bench.op, tuple), bench.caches, how))
    assert [len(samples.values) for samples in figures.samples] == [1, 3 * 3]
    assert bench.op.calls == 4 + (3 + 1) + 3 * (3 + 3)
