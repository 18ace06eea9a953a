"""Timed calls run in one thread; the program itself keeps its number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from pytest_dtdispatch.comparing.scaling import run_and_measure_sizes
from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation
from pytest_dtdispatch.replay.repeat import run_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.measured_runs import Make, captured, measured_call
from tests.probes import compiles_once_under_a_mode, needs_that

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

OWN = 3  # threads of the program


class Threads(WallClock):
    """Record the number of threads when a call is timed."""

    def __init__(self) -> None:
        super().__init__(self._read)
        self.seen: set[int] = set()

    def _read(self) -> int:
        self.seen.add(torch.get_num_threads())
        return time.perf_counter_ns()


@pytest.fixture(autouse=True)
def _threads_of_the_program() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(OWN)
    yield
    assert torch.get_num_threads() == OWN, "the number of threads was not restored"
    torch.set_num_threads(before)


def capture(a: Any, **how: Any) -> None:
    captured(lambda: a + a, plan=Plan(2, 3, **how))


def call(a: Any, **how: Any) -> None:
    measured_call(torch.add, a, a, plan=Plan(2, 3, **how))


def sizes(a: Any, **how: Any) -> None:
    make = lambda n: lambda: torch.stack([a] * n)  # noqa: E731
    run_and_measure_sizes(run_call, make, (1, 2), ShardingCaches(), Plan(7, 1, **how))


def compiled(a: Any, **how: Any) -> None:
    compilation = Compilation(torch.add, (a, a), backend="eager")
    run_and_measure_compile(compilation, "f", ShardingCaches(), Plan(1, 2, **how))


@pytest.mark.parametrize(("one_thread", "threads"), [(True, 1), (False, OWN)])
@pytest.mark.parametrize("measure", [capture, call, sizes, compiled])
def test_timed_calls_use_the_configured_thread_count(
    shard: Make, measure: Callable[..., None], one_thread: bool, threads: int
) -> None:
    sampler = Threads()
    measure(shard(8, 8), sampler=sampler, one_thread=one_thread)
    assert sampler.seen == {threads}


def test_time_capture_runs_in_one_thread(shard: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    a, sampler = shard(8, 8), Threads()
    monkeypatch.setitem(SAMPLERS, "time", sampler)
    with TimeCaptureMode():
        a + a
    assert sampler.seen == {1}


def test_program_call_runs_with_its_original_thread_count() -> None:
    values, seen = torch.rand(1 << 20), []

    def total() -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return values.sum()

    alone = total()
    result, figures = measured_call(total)
    assert torch.equal(result, alone)
    assert (seen[1], set(seen[-len(figures.samples[0].ns) :])) == (OWN, {1})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_thread_count_is_restored_after_a_failed_repetition(error: type[BaseException]) -> None:
    calls = []

    def late() -> None:
        calls.append(torch.get_num_threads())
        if len(calls) == 5:
            raise error("stop")

    with pytest.raises(error) if error is KeyboardInterrupt else nullcontext():
        measured_call(late)
    assert calls[4] == 1
    assert torch.get_num_threads() == OWN


@needs_that(compiles_once_under_a_mode)
def test_compiled_code_is_not_compiled_again() -> None:
    graphs = CompileCounter()
    torch.compiler.reset()
    double, ones = torch.compile(lambda x: x + x, backend=graphs), torch.ones(4)
    double(ones)
    _, figures = measured_call(lambda: double(ones))
    double(ones)
    torch.compiler.reset()
    assert graphs.frame_count == 1
    assert figures.notes == (f"timed in the program's {OWN} threads, which it is compiled for",)
