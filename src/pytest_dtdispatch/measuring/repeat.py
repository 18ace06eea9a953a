"""Measure a call by repeating it, and leave everything as the program's own call left it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from traceback import clear_frames
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples
from pytest_dtdispatch.core.metrics import repeated
from pytest_dtdispatch.core.signatures import place_text
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.measuring.call import (
    ConversionCall,
    OpCall,
    UnnoticedMode,
    placements_text,
    tensor_text,
)
from pytest_dtdispatch.measuring.guard import Setup, given_arguments
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.replay import (
    CallReplay,
    ConversionReplay,
    Masks,
    NoCopyError,
    OpReplay,
    in_turn,
    keys_of,
)
from pytest_dtdispatch.measuring.rounds import Rounds, Subject, nothing_to_do
from pytest_dtdispatch.measuring.signals import Signals, nothing_warned
from pytest_dtdispatch.torchapi.compiler import noticing_compiled_code
from pytest_dtdispatch.torchapi.hooks import (
    collective_of,
    noticing_redistributions,
    noting_collectives,
)
from pytest_dtdispatch.torchapi.ops import (
    close_modes_opened_since,
    is_collective,
    is_op,
    op_name,
    open_modes,
    returns_alias,
    tree_leaves,
    with_own_warnings,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import PlanCaches, ShardingCaches
from pytest_dtdispatch.torchapi.tensors import (
    local_of,
    release_of,
    tensor_traits,
    unwaited,
    wait_for,
    wait_for_all,
)


class LocalOps(UnnoticedMode):
    """Record the ops that DTensor ops come down to: those on plain tensors, collectives among them.

    Declining DTensor ops makes DTensor dispatch them itself, below this mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        call = OpCall(func, args, kwargs or {})
        self.calls.append(call)
        return call.run()


class Below(NamedTuple):
    """What a steady call comes down to.

    Args:
        local: the op on the local shards; None where it is not that op alone.
        why_no_local: why there is none; empty where there is one.
        redistributed: each redistribution that it implies: ``f32[8,16]S0R -> RR``.
    """

    local: OpCall | None
    why_no_local: str
    redistributed: tuple[str, ...]


def below(call: OpCall, rewind: Callable[[], None], signals: Signals) -> Below:
    """Find what a steady call comes down to: an op on the local shards, and redistributions.

    The call is made once more, on a hit, and what it runs below is recorded: nothing is guessed from rules.
    On a miss it would not do: propagation runs ops on fake tensors, and they would be recorded too.
    """
    rewind()
    redistributed: list[str] = []

    def note(source: Any, target: Any) -> None:
        traits = tensor_traits(source)
        text = tensor_text(traits) if traits else placements_text(source.placements)
        redistributed.append(f"{text} -> {placements_text(target.placements)}")

    with LocalOps() as ops, noticing_redistributions(note):
        try:
            signals.let_in()
            call.run()
        finally:
            signals.is_open = False
    return Below(*_local_among(call, ops.calls), tuple(repeated(redistributed)))


def _local_among(call: OpCall, ran: Sequence[OpCall]) -> tuple[OpCall | None, str]:
    """Choose the op on the local shards from all that a call ran below, or say why there is none."""
    collectives = [c for c in ran if getattr(c.func, "namespace", "").startswith(("c10d", "_c10d"))]
    if collectives:
        return None, f"redistributes ({', '.join(dict.fromkeys(c.func.__name__ for c in collectives))})"
    if len(ran) != 1:
        ops = ", ".join(dict.fromkeys(op_name(c.func) for c in ran)) or "none"
        return None, f"runs {len(ran)} ops on local shards ({ops})"
    [local] = ran
    if local.func is not call.func:
        return None, f"runs {op_name(local.func)} on local shards"
    if not _same_tensors(call, local):
        return None, "runs on other tensors than its local shards"
    return local, ""


def _same_tensors(call: OpCall, local: OpCall) -> bool:
    shards = [local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    is_same = all(shard is tensor for shard, tensor in zip_longest(shards, used))
    return is_same and all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)


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


NOT_COUNTED = "not measured: this torch does not count what its plans of redistribution are asked for"


class RanConversion:
    """A conversion that the program has made, and that can be repeated to measure it.

    Attributes:
        result: of the program's own call.
        took_ns: how long that took.
    """

    def __init__(self, call: ConversionCall) -> None:
        __tracebackhide__ = True
        self._call = call
        with without_outer_modes():
            self._replay = ConversionReplay(call, call.tensor)
        with self._replay.masks.watching():
            began = time.perf_counter_ns()
            self.result = call.run()
            self.took_ns = time.perf_counter_ns() - began

    def measure(self, caches: PlanCaches, plan: Plan) -> Figures:
        """Repeat it, and leave behind what the program's own call left behind."""
        __tracebackhide__ = True
        replay, call = self._replay, self._call
        with without_outer_modes():
            once = replay.settle()
        if once or not caches.readers():
            return Figures(notes=(once or NOT_COUNTED,))

        def prepare() -> tuple[Any, ...]:
            replay.rewind()
            return call.again()

        subject = Subject(call.function, prepare, call.kwargs)

        def once_more() -> Any:
            caches.clear()
            return call.function(*prepare(), **call.kwargs)

        again = None if plan.agreement else once_more
        with Repetitions(replay.restore, replay.masks, again, plan.one_thread) as repetitions:
            signals = repetitions.signals
            ran = with_own_warnings(lambda: _collectives_below(subject, signals))
            if ran:  # else what is waited for would be a collective of the program's own
                subject = replace(subject, release=release_of(self.result))
            rounds = Rounds(subject, caches, plan, None, synchronizer(), signals)
            figures = with_own_warnings(rounds.take)
            repetitions.figures = _in_terms_of_plans(figures, f"runs {', '.join(ran) or 'no collective'}")
        return repetitions.figures


def _collectives_below(subject: Subject, signals: Signals) -> list[str]:
    """Repeat a conversion, and name the collectives that it runs, in their order."""
    args = subject.prepare()
    with LocalOps() as below:
        try:
            signals.let_in()
            result = subject.fn(*args, **subject.kwargs)
        finally:
            signals.is_open = False
    ran = [kind for call in below.calls if (kind := collective_of(call.func))]
    if ran:
        wait_for(result)
    return ran


def _in_terms_of_plans(figures: Figures, ran: str) -> Figures:
    """Say of plans what is said of propagation where ops are measured."""

    def told(refused: Refused) -> Refused:
        return replace(refused, reason=refused.reason.replace("propagation", "planning"))

    def of_plans(samples: Samples) -> Samples:
        return replace(samples, refused=tuple(map(told, samples.refused)))

    notes = tuple(note.replace("propagation", "planning") for note in figures.notes)
    remarks = (ran, *(each.replace("the sharding propagator", "for a plan") for each in figures.remarks))
    return replace(figures, samples=tuple(map(of_plans, figures.samples)), notes=notes, remarks=remarks)


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

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note collectives that repetitions leave and their results do not show; wait for what is left."""
        if self._collectives is None:
            yield
            return
        with noting_collectives(self._collectives):
            try:
                yield
            finally:
                wait_for_all(self._collectives)

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
