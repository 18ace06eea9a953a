"""Whole callables, end to end: on a miss, on a hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.signatures import place_text
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.preconditions import Setup, given_arguments
from pytest_dtdispatch.measuring.proof import nothing_to_do
from pytest_dtdispatch.measuring.repeating import Repetitions, left_as_it_was, synchronizer
from pytest_dtdispatch.measuring.replay import CallReplay
from pytest_dtdispatch.measuring.rounds import Rounds, Subject
from pytest_dtdispatch.measuring.state import Masks, in_turn
from pytest_dtdispatch.measuring.storages import keys_of
from pytest_dtdispatch.torchapi.compiler import noticing_compiled_code
from pytest_dtdispatch.torchapi.ops import (
    is_collective,
    is_op,
    returns_alias,
    tree_leaves,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import noting_collectives, release_of, unwaited, wait_for_all

# Is told how many calls will be made, and how many seconds they may take.


class WriteWatch(UnnoticedMode):
    """Tell of every tensor that a callable is about to write to, less those that it makes itself."""

    def __init__(
        self,
        replay: CallReplay,
        save: Callable[[torch.Tensor], None],
        collectives: list[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.once = ""
        self._replay = replay
        self._save = save
        self._collectives = collectives  # is given the outputs of those that run
        self._created: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        tensors = [leaf for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
        with without_outer_modes():
            self._replay.grown.keep(tensors)
            if is_op(func):
                self._before(call, tensors)
        result = call.run()
        if not is_op(func):
            return result
        if self._collectives is not None and is_collective(func):
            self._collectives += (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        given = {key for tensor in tensors for key in keys_of(tensor)}
        if not returns_alias(func) or given <= self._created:
            with without_outer_modes():
                leaves = (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
                made = {key for leaf in leaves for key in keys_of(leaf)}
            self._created |= made - given
        return result

    def _before(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        """Look at an op that is about to run."""
        for tensor in call.written():
            if not keys_of(tensor) <= self._created:
                self.once = self.once or call.once_because() or ""
                self._save(tensor)


class CallWatch(WriteWatch):
    """Save what the program's own call is about to change, as it comes by; see which mesh it runs on."""

    def __init__(self, replay: CallReplay) -> None:
        super().__init__(replay, replay.save)
        self.mesh: Any = None

    def _before(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        if self.mesh is None:
            self.mesh = next((t.device_mesh for t in tensors if isinstance(t, DTensor)), None)
        self._replay.random.watch(call.leaves())
        for tensor in tensors:
            self._replay.gradients.note_leaves_behind(tensor)
        super()._before(call, tensors)


class RanCall:
    """A call that the program has made, and that can be repeated to measure it, as often as wanted."""

    def __init__(
        self,
        subject: Subject,
        replay: CallReplay,
        place: str,
        once: str,
        is_compiled: bool,
        collectives: list[torch.Tensor] | None = None,
    ) -> None:
        self.place = place
        self.once = once
        self.subject = subject
        self.is_compiled = is_compiled
        self._replay = replay
        self._collectives = collectives

    def noting(self) -> AbstractContextManager[None]:
        """Note collectives that repetitions leave and their results do not show, to be waited for."""
        return nullcontext() if self._collectives is None else noting_collectives(self._collectives)

    @property
    def masks(self) -> Masks:
        """Masks of cached plans that it may change."""
        return self._replay.masks

    def settle_again(self) -> None:
        """Leave behind what calls of the program left behind that came later."""
        with without_outer_modes():
            self.once = self.once or self._replay.settle_again()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        self._replay.restore()

    @contextmanager
    def repeating(self, one_thread: bool) -> Iterator[Callable[[], tuple[Any, ...]]]:
        """Give what prepares each repetition, of a call that can be repeated; then put everything back."""
        with Signals() as signals, left_as_it_was(self._replay.restore, self._replay.masks, one_thread):
            try:
                signals.let_in()
                yield self.subject.prepare
            finally:
                signals.is_open = False

    def measure(self, caches: ShardingCaches, plan: Plan) -> Figures:
        """Repeat the call, and leave behind what the program's own call left behind."""
        __tracebackhide__ = True
        if self.once:
            return Figures(notes=(self.once,))

        once_more = partial(_repeat, self.subject, caches.clear)
        replay, again = self._replay, None if plan.agreement else once_more
        one_thread, threads = plan.one_thread and not self.is_compiled, torch.get_num_threads()
        with self.noting(), Repetitions(replay.restore, replay.masks, again, one_thread) as repetitions:
            rounds = Rounds(self.subject, caches, plan, None, synchronizer(), repetitions.signals)
            repetitions.figures = rounds.take()
        figures = repetitions.figures
        if one_thread == plan.one_thread or threads == 1:
            return figures
        return replace(figures, notes=(*figures.notes, threads_note(threads)))


def threads_note(threads: int) -> str:
    """Say why a compiled call is not timed in one thread: torch would compile it anew, which is noticed."""
    return f"timed in the program's {threads} threads, which it is compiled for"


class MasksOfAll(Masks):
    """Masks of several calls that are repeated in turn, and collectives that they leave."""

    def __init__(self, calls: Sequence[RanCall]) -> None:
        super().__init__()
        self._calls = calls

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """See :meth:`Masks.repeating`."""
        with ExitStack() as entered:
            for call in self._calls:
                entered.enter_context(call.masks.repeating())
                entered.enter_context(call.noting())
            yield


def repeating_in_turn(calls: Sequence[RanCall], one_thread: bool, is_alone: bool) -> Repetitions:
    """Repeat calls in turn, in one thread or the program's; the last leaves behind what it left, last.

    Where ranks repeat together, none repeats once more alone to see where an error comes from.
    """

    def once_more() -> None:
        for call in calls:
            _repeat(call.subject)

    masks = MasksOfAll(calls)
    restore = partial(in_turn, *(call.restore for call in calls))
    return Repetitions(restore, masks, once_more if is_alone else None, one_thread)


def run_and_measure_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    setup: Setup | None,
    caches: ShardingCaches,
    plan: Plan,
) -> tuple[Any, str, Figures]:
    """Call a function for the program, then repeat it, putting back what can be put back.

    Put back are the contents and versions of every tensor that torch was asked to write to, the gradients of
    every leaf that took part, the entries of optimizers' states, and random states. Anything else that the
    function changes, it changes in each repetition.
    """
    __tracebackhide__ = True
    result, ran = run_call(fn, args, setup)
    return result, ran.place, ran.measure(caches, plan)


def run_call(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), setup: Setup | None = None
) -> tuple[Any, RanCall]:
    """Call a function for the program, and once more to see what it keeps from one call to the next."""
    __tracebackhide__ = True
    with without_outer_modes():
        replay = CallReplay(tree_leaves(args))
    first_args = given_arguments(args, setup)
    with replay.masks.watching(), CallWatch(replay) as watch:
        try:
            result = fn(*first_args)
        except BaseException:
            replay.forget()
            raise

    def prepare() -> tuple[Any, ...]:
        replay.rewind()
        return given_arguments(args, setup)

    subject = Subject(fn, prepare, prepare_propagates=setup is not None, release=release_of(result))
    compiled: list[bool] = []

    def entered() -> None:
        compiled.append(True)
        with without_outer_modes():
            replay.grown.keep()  # no mode sees what compiled code reads

    with noticing_compiled_code(entered):
        once, hides_collectives = _settled(replay, watch, subject)
    mesh = watch.mesh
    place = place_text(tuple(mesh.shape), mesh.device_type) if mesh is not None else ""
    collectives: list[torch.Tensor] | None = None
    if hides_collectives and not compiled:  # a hook would make compiled code compile again
        collectives = []
        subject = replace(subject, release=partial(wait_for_all, collectives))
    return result, RanCall(subject, replay, place, once, bool(compiled), collectives)


def _settled(replay: CallReplay, watch: CallWatch, subject: Subject) -> tuple[str, bool]:
    """Save what the program's call left behind; say why it cannot be repeated, where it cannot.

    Say too whether a repetition leaves collectives that its result does not show.
    """
    __tracebackhide__ = True
    hides_collectives = False
    with without_outer_modes():
        once = replay.settle() or watch.once
    if once:
        return once, False
    with Repetitions(
        replay.restore, replay.masks, partial(_repeat, subject), one_thread=False
    ) as repetitions:
        once, hides_collectives = _watched_repetition(replay, subject, repetitions.signals)
    return once or next(iter(repetitions.figures.notes), ""), hides_collectives


def _watched_repetition(replay: CallReplay, subject: Subject, signals: Signals) -> tuple[str, bool]:
    """Repeat a call, saving what it writes to that it kept before; say what :func:`_settled` says."""
    args = subject.prepare()
    before, collectives = unwaited(), list[torch.Tensor]()
    with WriteWatch(replay, replay.save_kept, collectives) as watch:
        try:
            signals.let_in()
            result = subject.fn(*args)
        finally:
            signals.is_open = False
    if subject.release is not None:
        subject.release(result)
    hides_collectives = unwaited() > before
    wait_for_all(collectives)
    return watch.once or replay.repeated(), hides_collectives


def _repeat(subject: Subject, clear: Callable[[], None] = nothing_to_do) -> None:
    """Repeat a call that is not timed."""
    args = subject.prepare()
    clear()
    result = subject.fn(*args)
    if subject.release is not None:
        subject.release(result)
