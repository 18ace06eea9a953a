"""When modules, backward, clipping and optimizers begin and end, told while compiled code stays compiled."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch

from pytest_dtdispatch.torchapi.autograd import watching_backward
from pytest_dtdispatch.torchapi.compiler import leave_uncompiled
from pytest_dtdispatch.torchapi.shared_hook import SharedHook

CLIPPING_FILE = torch.nn.utils.clip_grad.__file__
OPTIMIZER_RANGE = "Optimizer."  # how torch names the ranges in which optimizers work


@contextmanager
def watching_program(watcher: Any) -> Iterator[None]:
    """Tell a watcher what begins and ends, in every thread, and inside of what.

    ``watcher.begin_module(module)`` is told of a module that is called, ``watcher.begin_phase(phase, call)``
    of ``backward``, ``clipping`` and ``optimizer``, with the method of an optimizer. What they return is
    given to ``watcher.end``.

    None of what is replaced is looked at by the guards of compiled code: what was compiled before is used as
    it is. While torch compiles, all is put back, so that what is compiled meanwhile knows nothing of it
    either. Inside of compiled code nothing is called, and nothing told.
    """
    told = _Told(watcher)
    hooks = _program_hooks(told)
    with ExitStack() as held, watching_backward(told):

        def put_in(*_: Any) -> None:
            for hook in hooks:
                held.enter_context(hook.in_place())

        def take_out(*_: Any) -> None:
            held.pop_all().close()

        with _told_of_compiling(take_out, put_in):
            put_in()
            yield


class _Told:
    """A watcher as it is told: out of graphs, where a graph breaks and torch compiles what is called next."""

    def __init__(self, watcher: Any) -> None:
        disable = importlib.import_module("torch._dynamo").disable
        leave_uncompiled(__package__)  # our wrappers; what they call is compiled as ever
        self.begin_module, self.begin_phase = disable(watcher.begin_module), disable(watcher.begin_phase)
        self.end = disable(watcher.end)

    def on_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Tell of the engine as of all else."""
        __tracebackhide__ = True
        begun = self.begin_phase("backward", "")
        try:
            return run(*args, **kwargs)
        finally:
            self.end(begun)


def _program_hooks(watcher: _Told) -> list[SharedHook]:
    def alike(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda inner: wraps(inner)(wrap(inner))

    hooks = [SharedHook(torch.nn.Module, "__call__", alike(partial(_watched_call, watcher)))]
    for owner, phase in (
        (torch.no_grad, _clipping),
        (torch.autograd.profiler.record_function, _optimizing),
    ):
        block = _WatchedBlock(watcher, phase)
        hooks.append(SharedHook(owner, "__enter__", alike(block.entering)))
        hooks.append(SharedHook(owner, "__exit__", alike(block.leaving)))
    return hooks


def _watched_call(watcher: _Told, inner: Any) -> Any:
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        begun = watcher.begin_module(module)
        try:
            return inner(module, *args, **kwargs)
        finally:
            watcher.end(begun)

    return call


class _WatchedBlock:
    """A context manager of torch, some of which tell that something begins where they are entered.

    Args:
        watcher: is told.
        phase: names the phase that begins, and its call, by the context manager and who enters it; none
            where none does.
    """

    def __init__(self, watcher: _Told, phase: Callable[[Any, Any], tuple[str, str] | None]) -> None:
        self._watcher = watcher
        self._phase = phase
        self._begun: dict[int, Any] = {}

    def entering(self, inner: Any) -> Any:
        """Wrap ``__enter__``."""

        def enter(block: Any) -> Any:
            if phase := self._phase(block, sys._getframe(1)):
                self._begun[id(block)] = self._watcher.begin_phase(*phase)
            return inner(block)

        return enter

    def leaving(self, inner: Any) -> Any:
        """Wrap ``__exit__``."""

        def leave(block: Any, *exception: Any) -> Any:
            try:
                return inner(block, *exception)
            finally:
                if (begun := self._begun.pop(id(block), None)) is not None:
                    self._watcher.end(begun)

        return leave


def _clipping(block: Any, caller: Any) -> tuple[str, str] | None:
    return ("clipping", "") if caller.f_code.co_filename == CLIPPING_FILE else None


def _optimizing(block: Any, caller: Any) -> tuple[str, str] | None:
    if not block.name.startswith(OPTIMIZER_RANGE):
        return None
    return "optimizer", block.name.rpartition("#")[2]


@contextmanager
def _told_of_compiling(begins: Callable[..., None], ends: Callable[..., None]) -> Iterator[None]:
    """Call functions when torch begins to compile, and when it has ended."""
    handler = importlib.import_module("torch._dynamo.callback").callback_handler
    handler.register_start_callback(begins)
    handler.register_end_callback(ends)
    try:
        yield
    finally:
        handler.remove_start_callback(begins)
        handler.remove_end_callback(ends)
