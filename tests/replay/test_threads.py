"""Threads and tasks of a program: one measures at a time, nothing is left, and missed ops are reported."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.errors import DtDispatchWarning, MeasurementError
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.observe import SLOW_PATH, observe_propagations
from pytest_dtdispatch.torchapi.ops import open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.measured_runs import FEW, Make, captured
from tests.plugin_runs import measure_source, text_of
from tests.probes import SLOW_PATH_NAME, has, needs
from tests.threads import in_thread

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_stays")]

UNCACHED = "propagate_op_sharding_non_cached"


def capture(book: ResultStore | None = None) -> SignatureCapture:
    return SignatureCapture(ResultStore() if book is None else book, FEW)


def warned(body: Callable[[], object], book: ResultStore | None = None) -> list[str]:
    """Run a function in a capture; return its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with capture(book):
            body()
    return [str(each.message) for each in caught if each.category is DtDispatchWarning]


@pytest.mark.parametrize(
    ("opened", "label"), [(capture, "a capture is open"), (StepCounter, "steps are counted")]
)
@pytest.mark.parametrize("make", [capture, TimeCaptureMode, StepCounter])
def test_second_measuring_thread_is_refused(
    opened: Callable[[], Any], label: str, make: Callable[[], Any], shard: Make
) -> None:
    def enter() -> None:
        with make():
            pass

    with opened():
        [error] = in_thread(enter)
    assert isinstance(error, MeasurementError)
    assert str(error).startswith(f"{label} in thread 'MainThread': two threads would measure")
    assert in_thread(enter) == []


# Captures in several threads


@pytest.mark.parametrize("make", [capture, StepCounter])
def test_modes_left_open_by_dead_threads_are_removed(make: Callable[[], Any], shard: Make) -> None:
    a = shard(8, 8)
    assert in_thread(make().__enter__) == []
    [measured] = captured(lambda: a + a).measurements()
    assert measured.proof == "proved"


def test_closing_a_capture_elsewhere_names_its_thread() -> None:
    mode = capture()
    mode.__enter__()
    [error] = in_thread(lambda: mode.__exit__(None, None, None))
    assert str(error) == "the capture was opened in thread 'MainThread': close it there"
    open_modes()[0].__exit__(None, None, None)


def test_second_capture_of_concurrent_tasks_is_refused() -> None:
    async def work() -> None:
        with capture():
            await asyncio.sleep(0)

    async def main() -> None:
        first, second = await asyncio.gather(work(), work(), return_exceptions=True)
        assert first is None
        assert "captures cannot be nested" in str(second)

    asyncio.run(main())


METHODS = """
from concurrent.futures import ThreadPoolExecutor

def test_bad(dtdispatch, device_mesh):
    def refused():
        for what in (
            lambda: dtdispatch.capture().__enter__(),
            lambda: dtdispatch.call(len, "a"),
            lambda: dtdispatch.steps(lambda: None, name="s"),
            lambda: dtdispatch.scaling(lambda size: lambda: None, name="x"),
            lambda: dtdispatch.compile(len, "a"),
        ):
            try:
                what()
            except Exception as error:
                print(f"{type(error).__name__}: {error}")

    def in_thread():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(refused).result()

    with dtdispatch.capture():
        in_thread()
    dtdispatch.call(in_thread)
    dtdispatch.call(len, "b")
    dtdispatch.steps(in_thread, name="t")

def test_again(dtdispatch):
    dtdispatch.call(len, "b")
    with ThreadPoolExecutor(1) as pool:
        print("again:", pool.submit(dtdispatch.call, len, "b").exception())
"""


@pytest.mark.parametrize(("metric", "methods"), [("time", 5), ("counts", 4)])  # scalings are not counted
def test_methods_are_refused_during_a_measurement(
    pytester: pytest.Pytester, metric: str, methods: int
) -> None:
    result = measure_source(pytester, METHODS, "-s", f"--dtdispatch-metric={metric}", passed=2)
    output, _, again = text_of(result).partition("again: ")
    by_another_thread = " in thread 'MainThread': two threads would measure"
    assert output.count("MeasurementError: ") == output.count(by_another_thread)
    assert f"the name 'len' is used{by_another_thread}" in again
    assert output.count("MeasurementError: ") >= 2 * methods


# Hooks and their counts


@needs(SLOW_PATH_NAME)
def test_uncached_propagations_are_counted_per_thread(shard: Make) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    a = shard(8, 8)
    with ShardingCaches().counting_uncached() as here:

        def other() -> None:
            with ShardingCaches().counting_uncached() as there:
                a * a
                assert there == [1]

        assert in_thread(other) == []
        assert in_thread(lambda: a - a) == []
        assert here == [0]
        assert UNCACHED in vars(propagator)


# Ops of threads without a capture


def test_uncaptured_threads_are_reported_in_one_line(shard: Make) -> None:
    a = shard(8, 8, requires_grad=True)

    def body() -> None:
        (a * a).sum().backward()
        for number in range(5):
            in_thread(lambda: (a + a, a * a), f"t{number}")

    assert warned(body) == [
        "DTensor ops ran in threads without a capture ('t0_0', 't1_0', 't2_0', 't3_0', 't4_0'; "
        "at least 10 ops): they were not measured; open the capture in the thread that runs them"
    ]


def test_thread_with_inherited_capture_is_measured_silently(shard: Make) -> None:
    a, book = shard(8, 8), ResultStore()

    def body() -> None:
        [mode] = open_modes()

        def under_it() -> None:  # like threads of autograd, which inherit the modes of the caller
            torch._C._push_on_torch_dispatch_stack(mode)
            a + a
            torch._C._pop_torch_dispatch_stack(None)

        assert in_thread(under_it) == []

    assert warned(body, book) == []
    assert [one.op for one in book.measurements()] == ["add.Tensor"]


def test_uncaptured_threads_are_reported_without_native_cache(
    shard: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "SLOW_PATH", "of newer versions")
    a = shard(8, 8)
    [line] = warned(lambda: in_thread(lambda: a + a, "first"))
    assert line.startswith("DTensor ops ran in threads without a capture ('first_0'; at least 1 ops): ")


def test_hits_bypass_the_propagation_observer(shard: Make) -> None:
    a = shard(8, 8)
    noted: list[str] = []
    ShardingCaches().clear()
    with observe_propagations(noted.append):
        for _ in range(20):
            a + a
            assert len(noted) == 1
    assert noted == [SLOW_PATH] or not has(SLOW_PATH_NAME)


@needs(SLOW_PATH_NAME)
def test_propagation_observer_adds_no_stack_frame(shard: Make) -> None:
    """Each frame between an op and its propagation makes the propagation slower."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagate = getattr(propagator, UNCACHED)
    depths: list[int] = []

    def counted(schema: Any) -> Any:
        depths.append(len(inspect.stack(0)))
        return propagate(schema)

    a, caches = shard(8, 8), ShardingCaches()
    for noticing in (nullcontext(), observe_propagations(lambda name: None)):
        with patch.object(propagator, UNCACHED, counted), noticing:
            caches.clear()
            a + a
    assert depths == [depths[0]] * 2
