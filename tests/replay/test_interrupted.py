"""A signal that interrupts a captured program at a random time raises its exception without other effects."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import LocalOps
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.measured_runs import FEW, Make, measured_call

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CALLS = 4
Check = Callable[[], None]


class LateError(Exception):
    """Raised by a signal handler. An ordinary exception, such as repetitions may also raise."""


class Program:
    """Adds to a tensor in place and draws random numbers, and checks that no call ran partially.

    Args:
        shard: creates DTensors.
    """

    def __init__(self, shard: Make) -> None:
        self._sum, self._noise = shard(8, 8), shard(4, 4)
        self._sum.zero_()
        torch.manual_seed(7)
        self._states = [torch.get_rng_state()]
        for _ in range(CALLS):
            torch.rand_like(self._noise)
            self._states.append(torch.get_rng_state())
        self.begin()

    def begin(self) -> None:
        self._sum.zero_()
        torch.set_rng_state(self._states[0])

    def step(self) -> None:
        for _ in range(CALLS):
            self._sum.add_(1)
            torch.rand_like(self._noise)

    def is_whole(self) -> bool:
        """Return whether no op ran partially, and the second as often as the first, or once less."""
        local = local_of(self._sum)
        added = int(local.flatten()[0])
        drawn = [n for n, state in enumerate(self._states) if torch.equal(state, torch.get_rng_state())]
        return torch.equal(local, torch.full_like(local, added)) and drawn in ([added], [added - 1])


def captured(program: Program) -> None:
    with SignatureCapture(ResultStore(), FEW):
        program.step()


def called(program: Program) -> None:
    measured_call(program.step)


def raise_late(number: int, frame: FrameType | None) -> None:
    raise LateError("now")


HANDLERS: dict[int, tuple[Any, type[BaseException]]] = {
    signal.SIGINT: (signal.default_int_handler, KeyboardInterrupt),
    signal.SIGALRM: (raise_late, LateError),
}


@contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def wait_for_late_signal(ignored: Sequence[object], before: int) -> None:
    """Wait for a signal that arrives after the program, or whose exception Python ignored."""
    end = time.monotonic() + 10
    while len(ignored) <= before and time.monotonic() < end:
        time.sleep(0.01)


@contextmanager
def noting_ignored(error: type[BaseException]) -> Iterator[list[type[BaseException]]]:
    """Record exceptions of a class that Python ignores, as it must in weak reference callbacks."""
    ignored: list[type[BaseException]] = []
    hook = sys.unraisablehook

    def note(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, error):
            ignored.append(unraisable.exc_type)
        else:
            hook(unraisable)

    sys.unraisablehook = note
    try:
        yield ignored
    finally:
        sys.unraisablehook = hook


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("interrupts", [pytest.param(10), pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("run", [captured, called])
@pytest.mark.parametrize("number", HANDLERS)
def test_interrupt_at_random_time_leaves_valid_state(
    run: Callable[[Program], None], number: int, interrupts: int, shard: Make, nothing_stays: Check
) -> None:
    handler, error = HANDLERS[number]
    program = Program(shard)
    run(program)
    start = time.perf_counter()
    run(program)
    longest = time.perf_counter() - start
    chance = random.Random(number)
    filters = list(warnings.filters)
    with handling(number, handler), noting_ignored(error) as ignored:
        for _ in range(interrupts):
            program.begin()
            before, came = len(ignored), False
            after = chance.uniform(0.02, 0.9) * longest
            try:
                threading.Timer(after, os.kill, (os.getpid(), number)).start()
                run(program)
                wait_for_late_signal(ignored, before)
            except (KeyboardInterrupt, LateError, RuntimeError) as raised:
                # Propagation wraps every exception in a RuntimeError, also that of the original call.
                came = isinstance(raised, error) or isinstance(raised.__cause__, error)
            nothing_stays()
            assert gc.isenabled()
            assert program.is_whole()
            # An exception that Python ignores in a repetition is raised at its end: both outcomes are valid.
            assert came or len(ignored) > before
    assert list(warnings.filters) == filters


def signal_comes(moment: int, run: Callable[[], Any]) -> bool:
    """Raise a signal at the n-th moment of a run; return whether the run has that many moments."""
    left = moment

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_return")  # where Python checks for signals
        if not left:
            signal.raise_signal(signal.SIGALRM)

    gc.disable()  # exceptions in callbacks of the collector do not propagate
    with handling(signal.SIGALRM, raise_late):
        sys.setprofile(on_event)
        try:
            run()
        except LateError:
            return True
        finally:
            sys.setprofile(None)
            gc.enable()
    return False


@pytest.fixture
def few_signals(monkeypatch: pytest.MonkeyPatch) -> int:
    """Reduce the number of signals: with all of them, most moments are in the loop over signals."""
    some = {signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, *sorted(signal.valid_signals())[:4]}
    monkeypatch.setattr(signal, "valid_signals", lambda: some)
    return len(some)


FIRST = 2  # moment: at the first, Python enters the mode's method, and nothing of it has run


@pytest.mark.parametrize("is_opening", [True, False], ids=["opening", "closing"])
@pytest.mark.parametrize("make", [lambda: SignatureCapture(ResultStore(), Plan()), LocalOps])
def test_signal_while_opening_or_closing_leaves_no_mode(
    make: Callable[[], Any], is_opening: bool, few_signals: int, nothing_stays: Check
) -> None:
    def begun() -> tuple[Any, Callable[[], Any]]:
        mode = make()
        if is_opening:
            return mode, mode.__enter__
        mode.__enter__()
        return mode, partial(mode.__exit__, None, None, None)

    moment, (mode, run) = FIRST, begun()
    while signal_comes(moment, run):
        nothing_stays()
        moment, (mode, run) = moment + 1, begun()
    if is_opening:
        mode.__exit__(None, None, None)
    assert moment > 2 * few_signals
