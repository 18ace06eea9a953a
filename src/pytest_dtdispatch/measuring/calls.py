"""Whole callables, end to end: on a miss, on a hit."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.measuring import torchapi
from pytest_dtdispatch.measuring.caches import ShardingCaches
from pytest_dtdispatch.measuring.counted import rounds_of
from pytest_dtdispatch.measuring.modes import UnnoticedMode
from pytest_dtdispatch.measuring.ops import figures_of, first_line, synchronizer
from pytest_dtdispatch.measuring.replay import OpCall, Replay
from pytest_dtdispatch.measuring.rounds import Plan, Subject
from pytest_dtdispatch.measuring.setup import Setup, given_arguments
from pytest_dtdispatch.records.measurement import Figures
from pytest_dtdispatch.records.signature import place_text

# Is told how many calls will be made, and how many seconds they may take.
Foretell = Callable[[int, float], None]


def nobody_waits(calls: int, seconds: float) -> None:
    """Stand in for who is told how long the repetitions of a call may take."""


class WriteWatch(UnnoticedMode):
    """Save every tensor that a callable writes to, as the write comes by; see which mesh it runs on.

    What the callable itself creates is left out: nobody else can see it.

    Args:
        replay: where contents and gradients are saved.
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.once: str | None = None
        self.mesh: Any = None
        self._replay = replay
        self._created: dict[int, weakref.ref[torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        tensors = [leaf for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
        if self.mesh is None:
            self.mesh = next((t.device_mesh for t in tensors if isinstance(t, DTensor)), None)
        if not torchapi.is_op(func):
            return call.run()
        with torchapi.without_outer_modes():
            self._replay.random.watch(call.leaves())
            self._save(call, tensors)
        result = call.run()
        if not torchapi.returns_alias(func) or all(map(self._is_created, tensors)):
            self._note_created(result)
        return result

    def _save(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            for leaf in self._replay.gradients.leaves_behind(tensor):
                if leaf.grad is not None:
                    self._replay.tensors.save(leaf.grad)
        for tensor in call.written():
            if self._is_created(tensor):
                continue
            self.once = self.once or call.once_because()
            self._replay.tensors.save(tensor)

    def _is_created(self, tensor: torch.Tensor) -> bool:
        known = self._created.get(id(tensor))
        return known is not None and known() is tensor

    def _note_created(self, result: Any) -> None:
        for leaf in torchapi.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._created[id(leaf)] = weakref.ref(leaf)


class RanCall:
    """A call that the program has made, and that can be repeated to measure it, as often as wanted.

    Args:
        subject: what is repeated; nothing where it runs once.
        replay: what puts back what the call changes.
        place: the mesh it ran on, as text.
        once: why it runs once; empty where it can be repeated.
        took_ns: that the program's own call took.
    """

    def __init__(
        self, subject: Subject | None, replay: Replay, place: str, once: str, took_ns: int = 0
    ) -> None:
        self.place = place
        self.once = once
        self.took_ns = took_ns
        self._subject = subject
        self._replay = replay

    @contextmanager
    def repeating(self) -> Iterator[Callable[[], tuple[Any, ...]]]:
        """Give what prepares each repetition of the call, and leave behind what the program's call left.

        The call must be one that can be repeated.
        """
        assert self._subject is not None
        with torchapi.without_outer_modes(), self._replay.repeating():
            yield self._subject.prepare

    def measure(self, caches: ShardingCaches, plan: Plan) -> Figures:
        """Repeat the call, and leave behind what the program's own call left behind."""
        if self._subject is None:
            return Figures(notes=(self.once,))
        with torchapi.without_outer_modes():
            try:
                with self._replay.repeating():
                    taken = rounds_of(self._subject, caches, plan, synchronize=synchronizer()).take()
            except RanksError:  # without the others this rank cannot go on
                raise
            except Exception as error:  # the program's own call succeeded: it must not see this
                return Figures(notes=(f"repeating it raised {first_line(error)}",))
            return figures_of(taken)


def run_and_measure_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    setup: Setup | None,
    caches: ShardingCaches,
    plan: Plan,
    foretell: Foretell = nobody_waits,
) -> tuple[Any, str, Figures]:
    """Call a function for the program, then repeat it, putting back what can be put back.

    Put back are the contents of every tensor that torch was asked to write to, the gradients of every leaf
    that took part, and random states. Anything else that the function changes, it changes in each repetition.

    Args:
        fn: the function.
        args: its arguments.
        setup: called before each call, untimed; what it returns, if anything, are the arguments.
        caches: the caches that are cleared and counted.
        plan: how much is measured.
        foretell: is told, before the function is repeated, how often it will be and how many seconds that
            may take.

    Returns:
        The result of the first call, the mesh it ran on as text, and the figures.
    """
    __tracebackhide__ = True
    result, ran = run_call(fn, args, setup)
    if not ran.once and plan.counting is None:
        calls = plan.foretold_calls(ran.took_ns)
        foretell(calls, calls * ran.took_ns / 1e9)
    return result, ran.place, ran.measure(caches, plan)


def run_call(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), setup: Setup | None = None
) -> tuple[Any, RanCall]:
    """Call a function for the program; arguments as of :func:`run_and_measure_call`.

    Returns:
        The result, and what measures it.
    """
    __tracebackhide__ = True
    with torchapi.without_outer_modes():
        replay = Replay(torchapi.tree_leaves(args))
    first_args = given_arguments(args, setup)
    with WriteWatch(replay) as watch:
        began = time.perf_counter_ns()
        result = fn(*first_args)
        took_ns = time.perf_counter_ns() - began
    with torchapi.without_outer_modes():
        once = replay.settle() or watch.once
        subject = Subject(fn, _rewound(replay, args, setup), prepare_propagates=setup is not None)
        return result, RanCall(None if once else subject, replay, _place(watch.mesh), once or "", took_ns)


def _rewound(replay: Replay, args: tuple[Any, ...], setup: Setup | None) -> Callable[[], tuple[Any, ...]]:
    def prepare() -> tuple[Any, ...]:
        replay.rewind()
        return given_arguments(args, setup)

    return prepare


def _place(mesh: Any) -> str:
    return place_text(tuple(mesh.shape), mesh.device_type) if mesh is not None else ""
