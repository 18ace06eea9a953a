"""Measure an op by repeating it, and leave everything as the program's own call left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from traceback import clear_frames
from typing import Any, Protocol

import torch

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.measuring.below import below
from pytest_dtdispatch.measuring.interrupts import Signals, nothing_warned
from pytest_dtdispatch.measuring.op_call import OpCall
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.proof import nothing_to_do
from pytest_dtdispatch.measuring.rounds import Rounds, Subject
from pytest_dtdispatch.measuring.state import Masks, RandomState, Specs, in_turn
from pytest_dtdispatch.measuring.storages import (
    Copy,
    NoCopyError,
    copy_in_layout,
    layout_of,
    put_back_all,
    why_no_copy,
)
from pytest_dtdispatch.torchapi.ops import (
    close_modes_opened_since,
    open_modes,
    with_own_warnings,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import ShardingCaches


class Repeatable(Protocol):
    """A call by what it is given, and what it writes to."""

    def leaves(self) -> list[Any]:
        """Every argument, lists of tensors flattened."""

    def written(self) -> list[torch.Tensor]:
        """Tensors that it writes to."""


class OpReplay:
    """What a program could notice of an op that is made again: noted before, put back after.

    Of what the op writes to one copy is held, and taken after the call: each repetition starts from what the
    program's call left behind, as dispatch does not depend on what tensors hold.
    """

    def __init__(self, call: Repeatable) -> None:
        self.masks = Masks()
        self._leaves = call.leaves()
        self._random = RandomState(self._leaves)
        self._specs = Specs()
        self._copies: list[Copy] = []
        written = call.written()
        self._why_once = next(filter(None, map(why_no_copy, written)), "")
        self._layouts = {} if self._why_once else {id(each): (each, layout_of(each)) for each in written}

    @property
    def rewinds(self) -> bool:
        """Whether anything must be put back before each repetition; random states need not be."""
        return bool(self._copies) or bool(self.masks)

    def settle(self) -> str:
        """Save what the program's call left behind; say why it cannot be repeated, where it cannot."""
        for leaf in self._leaves:
            self._specs.note(leaf)
        self._random.settle()
        self.masks.settle()
        try:
            self._copies = [copy_in_layout(*each) for each in self._layouts.values()]
        except NoCopyError as error:
            return str(error)
        return self._why_once

    def rewind(self) -> None:
        """Put back what a repetition must find; no plan of propagation depends on a random draw."""
        self.masks.rewind()
        put_back_all(self._copies)

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""
        copies = (copy.put_back for copy in self._copies)
        in_turn(self.masks.restore, self._random.restore, *copies, self._specs.restore)


@contextmanager
def left_as_it_was(restore: Callable[[], None], masks: Masks, one_thread: bool) -> Iterator[None]:
    """Repeat a call below the modes of the program; then close what it left open, and put all back.

    In one thread it is dispatch that is timed: a local op that torch splits over threads waits, where other
    processes keep the cores busy, a whole time slice for its second thread.
    """
    with without_outer_modes(), ExitStack() as afterwards:
        if one_thread and (threads := torch.get_num_threads()) != 1:
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(1)
        afterwards.callback(restore)
        afterwards.enter_context(masks.repeating())
        afterwards.callback(close_modes_opened_since, open_modes())
        yield


class Repetitions:
    """Repeat a call in a ``with`` block, without the program noticing.

    What a repetition raises becomes a note in place of figures, as the program's own call succeeded. What
    comes from elsewhere while one runs, the program sees as if its own call had raised it: what a signal
    handler raises, or another thread sets for this one to raise.

    It is no function that is given what to repeat, as each frame between the program and its op makes a miss
    longer: propagation walks the stack.

    Attributes:
        figures: what was measured; set it in the block.
        signals: let them in while the call runs.
    """

    def __init__(
        self,
        restore: Callable[[], None],
        masks: Masks,
        once_more: Callable[[], Any] | None,
        one_thread: bool,
    ) -> None:
        self.figures = Figures()
        self.signals = Signals()
        self._restore = restore
        self._masks = masks
        self._once_more = once_more
        self._one_thread = one_thread
        self._entered = ExitStack()

    def __enter__(self) -> Repetitions:
        with ExitStack() as entered:
            entered.enter_context(self.signals)
            entered.enter_context(nothing_warned())
            entered.enter_context(left_as_it_was(self._restore, self._masks, self._one_thread))
            self._entered = entered.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        __tracebackhide__ = True
        self.signals.is_open = False
        with self._entered:
            if not isinstance(error, Exception) or isinstance(error, RanksError):
                return False
            if self._once_more and is_from_elsewhere(error, self._once_more):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep it, and with it what was repeated
            why = str(error) if isinstance(error, NoCopyError) else f"repeating it raised {first_line(error)}"
            self.figures = Figures(notes=(why,))
        return True


def is_from_elsewhere(error: Exception, once_more: Callable[[], Any]) -> bool:
    """Tell what another thread made this one raise: it says nothing, and does not come again."""
    if error.args:
        return False
    try:
        once_more()
    except Exception as again:
        return type(again) is not type(error)
    return True


def synchronizer() -> Any:
    """Return what waits for the device, where this process uses one."""
    return torch.cuda.synchronize if torch.cuda.is_initialized() else nothing_to_do


def run_and_measure_op(call: OpCall, caches: ShardingCaches, plan: Plan) -> tuple[Any, Figures]:
    """Make an op call as the program asked for it, then repeat it without the program noticing.

    The program's call comes first and with every mode of the program open; what it raises, it raises
    here. The repetitions see no mode, and leave contents, random state and results as that call left them.
    """
    __tracebackhide__ = True  # what the program's call raises is the program's
    once = call.once_because()
    if once:
        return call.run(), Figures(notes=(once,))
    with without_outer_modes():
        replay = OpReplay(call)
    with replay.masks.watching():
        try:
            result = call.run()
        except BaseException:
            del replay  # a traceback that lives on must not hold what was saved
            raise
    with without_outer_modes():
        once = replay.settle()
    if once:
        return result, Figures(notes=(once,))

    def once_more() -> Any:
        replay.rewind()
        caches.clear()
        return call.run()

    again = None if plan.agreement else once_more
    with Repetitions(replay.restore, replay.masks, again, plan.one_thread) as repetitions:
        signals = repetitions.signals
        found = with_own_warnings(lambda: below(call, replay.rewind, signals))
        local_subject = _subject(found.local, replay) if found.local else None
        rounds = Rounds(_subject(call, replay), caches, plan, local_subject, synchronizer(), signals)
        figures = with_own_warnings(rounds.take)
        remarks = () if found.local else (f"no local row: {found.why_no_local}",)
        notes = (f"redistributes {', '.join(found.redistributed)}",) if found.redistributed else ()
        notes, remarks = (*notes, *figures.notes), (*remarks, *figures.remarks)
        repetitions.figures = replace(figures, notes=notes, remarks=remarks)
    return result, repetitions.figures


def _subject(call: OpCall, replay: OpReplay) -> Subject:
    def rewound() -> tuple[Any, ...]:
        replay.rewind()
        return call.args

    args = call.args
    return Subject(call.func, rewound if replay.rewinds else lambda: args, call.kwargs)
