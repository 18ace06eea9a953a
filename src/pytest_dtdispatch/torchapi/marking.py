"""Ranges around what DTensor does at length, which a profiler of torch shows among its events."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.conversions import Conversion, Converter, conversion_hooks
from pytest_dtdispatch.torchapi.profiler_ranges import new_range
from pytest_dtdispatch.torchapi.propagator import SLOW_PATH, redistribute_module
from pytest_dtdispatch.torchapi.shared_hook import held_by_name

PLANNERS = ("_gen_transform_infos", "_gen_transform_infos_non_cached", "_optimize_transform_infos")
OURS = "dtdispatch::"
Function = Callable[..., Any]


class Marks:
    """Puts ranges around functions of torch: ``dtdispatch::redistribution 3``, with the number of its note.

    Args:
        new_range: makes a range of a name, to be entered: by default one that a profiler of torch shows.

    Attributes:
        notes: of each range that has a number, what is known of it: of a redistribution the specs before and
            after, of other conversions their name, of a look-up in the Python cache whether it missed.
    """

    def __init__(self, new_range: Function = new_range) -> None:
        self.notes: list[Any] = []
        self._new_range = new_range

    def marked(self, name: str) -> Any:
        """Make a range of ours, to be entered."""
        return self._new_range(f"{OURS}{name}")

    def _ranged(self, name: str, inner: Function) -> Function:
        """Run a function in a range of a name."""

        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self.marked(name):
                return inner(*args, **kwargs)

        return run

    def on_conversion(self, converter: Converter, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Mark a wrap or an unwrap; of what is redistributed the inner function is marked."""
        __tracebackhide__ = True
        self.notes.append(converter.name)
        with self.marked(f"wrapping {len(self.notes) - 1}"):
            return function(*args, **kwargs)

    def hooks(self) -> Iterator[AbstractContextManager[Any]]:
        """Give what puts the ranges in place."""
        dispatcher, propagator = DTensor._op_dispatcher, DTensor._op_dispatcher.sharding_propagator
        yield from conversion_hooks(self, (Conversion.WRAP, Conversion.UNWRAP))
        if hasattr(dispatcher, "dispatch"):  # in Python; of what C++ dispatches the profiler has an event
            in_python = staticmethod(self._ranged("dispatch", DTensor.__torch_dispatch__))
            yield patch.object(DTensor, "__torch_dispatch__", in_python)
        for owner, name in ((dispatcher, SLOW_PATH), (propagator, "propagate_op_sharding_non_cached")):
            if hasattr(owner, name):
                yield patch.object(owner, name, self._ranged("propagation", getattr(owner, name)))
        cache = propagator.propagate_op_sharding
        yield patch.object(propagator, "propagate_op_sharding", _Stand(cache, self._look_up(cache)))
        module = redistribute_module()
        for name in PLANNERS:
            if hasattr(module, name):
                planner = getattr(module, name)
                yield patch.object(module, name, _Stand(planner, self._ranged("planning", planner)))
        name = "redistribute_local_tensor"
        inner = getattr(module, name)
        yield from held_by_name(name, inner, self._redistribution(inner))
        name = "_engine_run_backward"
        if (inner := getattr(importlib.import_module("torch.autograd.graph"), name, None)) is not None:
            yield from held_by_name(name, inner, self._ranged("backward", inner))

    def _redistribution(self, inner: Function) -> Function:
        """Mark a redistribution, and keep its specs, of which a text is made later."""

        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self.notes.append(args[1:3])
            with self.marked(f"redistribution {len(self.notes) - 1}"):
                return inner(*args, **kwargs)

        return run

    def _look_up(self, cache: Any) -> Function:
        """Mark a look-up in the propagator's Python cache, and note whether it missed."""

        def run(schema: Any) -> Any:
            __tracebackhide__ = True
            info, number = cache.cache.cache_info, len(self.notes)
            self.notes.append(False)
            before = info().misses
            try:
                with self.marked(f"look-up {number}"):
                    return cache(schema)
            finally:
                self.notes[number] = info().misses > before

        return run


@contextmanager
def marking(new_range: Function = new_range) -> Iterator[Marks]:
    """Put ranges in place for a while."""
    marks = Marks(new_range)
    with ExitStack() as stack:
        for hook in marks.hooks():
            stack.enter_context(hook)
        yield marks


class _Stand:
    """Stands in for a function that has attributes of its own, as one with a cache has."""

    def __init__(self, inner: Any, outer: Function) -> None:
        self._inner = inner
        self._outer = outer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._outer(*args, **kwargs)
