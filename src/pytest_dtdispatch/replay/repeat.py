"""Repeat a call to measure it, and restore what the program's own call left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from traceback import clear_frames
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.checks import Setup, call_arguments, check_result
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.results import repeated
from pytest_dtdispatch.core.signatures import device_of, mesh_device_text
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.replay.modes import UnnoticedMode
from pytest_dtdispatch.replay.replay import Replay, agreed_reason
from pytest_dtdispatch.replay.states import leaves_behind
from pytest_dtdispatch.replay.storages import NoCopyError, Storages, keys_of
from pytest_dtdispatch.rounds.plan import Agreement, Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.signals import Signals, nothing_warned
from pytest_dtdispatch.rounds.timing import Prepare, Subject, no_op
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.calls import ConversionCall, OpCall
from pytest_dtdispatch.torchapi.collectives import collective_of
from pytest_dtdispatch.torchapi.compiler import observe_compiled_code
from pytest_dtdispatch.torchapi.ops import (
    call_from_torch,
    close_modes_opened_since,
    hidden_from_constructors,
    is_op,
    modes_disabled,
    op_name,
    open_modes,
    tree_leaves,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.signatures import redistribution_text
from pytest_dtdispatch.torchapi.tensors import (
    PLAIN_TYPES,
    are_on_meta,
    local_of,
    release_of,
    tensors_in,
    unwaited,
    wait_for,
    wait_for_all,
)

__tracebackhide__ = True  # a failing test shows its own line

ON_META = "not timed: DTensors on meta have meta kernels; --dtdispatch-metric counts and instructions work"


class LocalOps(UnnoticedMode):
    """Recorder of the ops on plain tensors that DTensor ops dispatch to, including collectives.

    It declines DTensor ops, so that DTensor itself dispatches them below this mode.

    Attributes:
        calls: recorded ops.
        redistributions: redistributions that change placements, as text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []
        self.redistributions: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        call = OpCall(func, args, kwargs)
        self.calls.append(call)
        return call.run()

    def on_redistribution(self, shard: Any, source: Any, target: Any, *_: Any) -> None:
        """Record a redistribution."""
        if tuple(source.placements) != tuple(target.placements):
            self.redistributions.append(redistribution_text(source, target))


class WriteRecorder(UnnoticedMode):
    """Mode that saves all state before a whole callable changes it, except tensors that the callable creates.

    Args:
        replay: the callable and its saved state.
        save: method of ``replay`` that saves a tensor.
        collectives: list to which outputs of collectives are appended; None to ignore them.

    Attributes:
        mesh: mesh of the first DTensor; None if there is none.
        is_on_meta: whether any DTensor is on meta.
    """

    def __init__(
        self,
        replay: Replay,
        save: Callable[[torch.Tensor], None],
        collectives: list[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.mesh: Any = None
        self.is_on_meta = False
        self._replay, self._save, self._collectives = replay, save, collectives
        self._created: set[Any] = set()
        self._visited: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OpCall(func, args, kwargs)
        with modes_disabled():
            self._replay.grown.keep_allocated(call.tensors)
            if is_op(func):
                if self.mesh is None:
                    self.mesh = call.mesh
                self.is_on_meta |= call.is_on_meta
                self._replay.random.save_all(call.leaves)
                for tensor in call.tensors:
                    for leaf in leaves_behind(tensor, self._visited):
                        self._replay.gradients.save(leaf)
                for tensor in call.written:
                    if not keys_of(tensor) <= self._created:
                        # Save before refuse: the first reason wins, and that of save is more specific.
                        self._save(tensor)
                        self._replay.refuse(call.skip_reason)
        result = call.run()
        if not is_op(func):
            return result
        if self._collectives is not None and func.namespace.startswith("_c10d_functional"):
            self._collectives += tensors_in(result)
        arguments = {key for tensor in call.tensors for key in keys_of(tensor)}
        if arguments <= self._created or not call.may_return_alias:
            self._created |= {key for leaf in tensors_in(result) for key in keys_of(leaf)} - arguments
        return result


@dataclass
class RanCall:
    """A call that the program has run, and that can be repeated.

    Attributes:
        replay: saved state that each repetition restores.
        subject: repeated call.
        is_on_meta: whether any of its DTensors is on meta.
        is_compiled: whether the call entered compiled code.
        collectives: list for the collectives that repetitions leave running and that are not in their
            results; None if there are none.
        local: op on local shards that the call dispatches to, if it was inspected and dispatches to one.
        notes: notes of the inspection, which precede those of the rounds.
        remarks: remarks of the inspection.
        error: why the latest repetitions ended early; None if they did not.
    """

    replay: Replay
    subject: Subject
    is_on_meta: bool
    is_compiled: bool = field(default=False, init=False)
    collectives: list[torch.Tensor] | None = field(default=None, init=False)
    local: Subject | None = field(default=None, init=False)
    notes: tuple[str, ...] = field(default=(), init=False)
    remarks: tuple[str, ...] = field(default=(), init=False)
    error: str | None = field(default=None, init=False)

    def inspect(self, signals: Signals) -> None:
        """Repeat the call once, and record the local ops and collectives that it runs; by default none."""

    def calling(self, run: Callable[[], None]) -> AbstractContextManager[Callable[[], object]]:
        """Return a context with the function that runs repetitions."""
        return call_from_torch(run)

    def record_collective(self, wrap: Callable[..., Any], output: Any) -> Any:
        """Record a collective that a repetition leaves running and that is not in its result."""
        if self.collectives is not None:
            self.collectives.extend(tree_leaves(output))
        return wrap(output)

    def skip_reason(self, plan: Plan) -> str | None:
        """Return why no rank measures the call; None if all ranks do."""
        reason = self.replay.skip_reason
        if reason is None and self.is_on_meta and plan.sampler.unit.is_time:
            reason = ON_META
        return agreed_reason(plan.agreement, reason)

    def measure(self, caches: ShardingCaches, plan: Plan, inspects: bool = True) -> Figures:
        """Repeat the call to measure it, then restore the state after the program's own call.

        Args:
            caches: sharding caches.
            plan: rounds and time limit.
            inspects: whether the call is inspected first.
        """
        reason = self.skip_reason(plan)
        if reason is not None:
            return Figures(notes=(reason,))
        if not caches.readers():
            note = "not measured: this torch does not count lookups of redistribution plans"
            return Figures(notes=(note,))
        one_thread, threads = plan.one_thread and not self.is_compiled, torch.get_num_threads()
        figures = Figures()
        with repetitions([self], one_thread, plan.agreement is None, caches.clear) as signals:
            if inspects:
                with self.calling(partial(self.inspect, signals)) as call:
                    call()
            planned = replace(plan, one_thread=one_thread)
            rounds = Rounds(self.subject, caches, planned, self.local, synchronizer(), signals)
            # Add no other function in between: see `rounds/timing.py`.
            with self.calling(rounds.run) as call:
                call()
            figures = rounds.figures
            notes, remarks = (*self.notes, *figures.notes), (*self.remarks, *figures.remarks)
            figures = replace(figures, notes=notes, remarks=remarks)
        if self.error is not None:
            figures = Figures(notes=(self.error,))
        if one_thread == plan.one_thread or threads == 1:
            return figures
        return replace(figures, notes=(*figures.notes, threads_note(threads)))


@dataclass
class RanOp(RanCall):
    """An op call."""

    call: OpCall

    def inspect(self, signals: Signals) -> None:
        """Repeat a hit, and record the op on local shards and the redistributions that it runs.

        They are recorded, not derived from rules. On a miss, propagation would also run ops on fake tensors.
        """
        below = LocalOps()
        with observe.before("redistribution", below.on_redistribution):
            repeat_under(below, self.subject, self.subject.prepare(), signals)
        if below.redistributions:
            self.notes = (f"redistributes {', '.join(repeated(below.redistributions))}",)
        local = local_op(self.call, below.calls)
        if isinstance(local, str):
            self.remarks = (f"no local row: {local}",)
        else:
            self.local = _subject_of_op(local, self.replay)


@dataclass
class RanConversion(RanCall):
    """A conversion between a DTensor and a local tensor, or a redistribution."""

    result: Any

    def inspect(self, signals: Signals) -> None:
        """Repeat the conversion, and record the collectives that it runs, in order."""
        below = LocalOps()
        again = repeat_under(below, self.subject, self.subject.prepare(), signals)
        collectives = [*filter(None, (collective_of(call.func) for call in below.calls))]
        if collectives:  # otherwise it would wait for a collective of the program
            wait_for(again)
            self.subject = replace(self.subject, release=release_of(self.result))
        self.remarks = (f"runs {', '.join(collectives) or 'no collective'}",)


@dataclass
class RanCallable(RanCall):
    """A call of a whole function.

    Attributes:
        mesh: mesh of the first DTensor, as text; empty if there is none.
    """

    mesh: str

    def calling(self, run: Callable[[], None]) -> AbstractContextManager[Callable[[], object]]:
        """Return a context with the function itself: C++ warnings of a whole function are the program's."""
        return nullcontext(run)

    def on_compiled_code(self) -> None:
        """Record that the call enters compiled code, whose reads no mode observes."""
        self.is_compiled = True
        with modes_disabled():
            self.replay.grown.keep_allocated()

    def repeat_first(self, is_alone: bool) -> None:
        """Repeat the call for the first time; record tensors that it creates and unawaited collectives."""
        collectives: list[torch.Tensor] = []
        running = 0  # collectives that it started and nothing waited for
        with (
            observe_compiled_code(self.on_compiled_code),
            hidden_from_constructors(UnnoticedMode),
            repetitions([self], one_thread=False, is_alone=is_alone) as signals,
        ):
            args = self.subject.prepare()
            before = unwaited()
            recorder = WriteRecorder(self.replay, self.replay.save_created, collectives)
            result = repeat_under(recorder, self.subject, args, signals)
            if self.subject.release is not None:
                self.subject.release(result)
            running = unwaited() - before
            wait_for_all(collectives)
            self.replay.settle_repetition()
            del result
        self.replay.refuse(self.error)
        if running > 0 and not self.is_compiled:  # a patch would cause compiled code to recompile
            self.collectives = []
            self.subject = replace(self.subject, release=partial(wait_for_all, self.collectives))

    @contextmanager
    def repeating(self, one_thread: bool) -> Iterator[Prepare]:
        """Yield a function that prepares a repetition; then restore the state after the program's call."""
        with Signals() as signals, restoring([self], one_thread):
            try:
                signals.let_in()
                yield self.subject.prepare
            finally:
                signals.is_open = False


def local_op(call: OpCall, ran: Sequence[OpCall]) -> OpCall | str:
    """Return the op on local shards among the ops that a call ran, or the reason why there is none."""
    collectives = [c for c in ran if getattr(c.func, "namespace", "").startswith(("c10d", "_c10d"))]
    if collectives:
        return f"redistributes ({', '.join(dict.fromkeys(c.func.__name__ for c in collectives))})"
    if len(ran) != 1:
        ops = ", ".join(dict.fromkeys(op_name(c.func) for c in ran)) or "none"
        return f"runs {len(ran)} ops on local shards ({ops})"
    [local] = ran
    if local.func is not call.func:
        return f"runs {op_name(local.func)} on local shards"
    shards = map(local_of, call.tensors)
    is_plain = all(type(tensor) in PLAIN_TYPES for tensor in local.tensors)
    if is_plain and all(shard is tensor for shard, tensor in zip_longest(shards, local.tensors)):
        return local
    return "runs on other tensors than its local shards"


def repeat_under(
    mode: AbstractContextManager[Any], subject: Subject, args: tuple[Any, ...], signals: Signals
) -> Any:
    """Repeat a call once under a mode or counter of this plugin."""
    with mode:
        try:
            signals.let_in()
            return subject.fn(*args, **subject.kwargs)
        finally:
            signals.is_open = False


@contextmanager
def restoring(calls: Sequence[RanCall], one_thread: bool) -> Iterator[None]:
    """Disable modes of the program for repetitions; then close modes that they left open, and restore state.

    Dispatch is timed in one intra-op thread: if other processes keep the cores busy, a local op that torch
    splits over threads waits a whole time slice for its second thread.
    """
    with without_outer_modes(), ExitStack() as afterwards:
        threads = torch.get_num_threads()
        if one_thread and threads != 1:
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(1)
        for call in reversed(calls):
            afterwards.callback(call.replay.restore)
        for call in calls:
            if call.replay.masks:  # the call changed a mask: also save the masks of new plans
                afterwards.enter_context(call.replay.recording_masks())
            if call.collectives is not None:
                afterwards.enter_context(observe.around({"collective_output": call.record_collective}))
                afterwards.callback(wait_for_all, call.collectives)
        afterwards.callback(close_modes_opened_since, open_modes())
        yield


@contextmanager
def repetitions(
    calls: Sequence[RanCall], one_thread: bool, is_alone: bool, clear: Callable[[], None] = no_op
) -> Iterator[Signals]:
    """Repeat calls in a ``with`` block, without visible effects on the program.

    An error of a repetition is stored in the calls, as the program's own call succeeded.
    Exceptions of a signal handler or of another thread are raised as if the program's own call had raised
    them.

    This is a ``with`` block, not a function, to add no frame between the program and its op: see
    ``rounds/timing.py``.

    Args:
        calls: calls to repeat, alternately.
        one_thread: whether they run in one intra-op thread, or in the program's number of threads.
        is_alone: whether a call may be repeated to find the source of an error, which is impossible if ranks
            repeat together.
        clear: function that clears caches before that.

    Yields:
        Deferred signals; they are to be admitted while a call runs.
    """
    for call in calls:
        call.error = None
    with Signals() as signals, nothing_warned(), restoring(calls, one_thread):
        try:
            yield signals
        except RanksError:
            raise
        except Exception as error:
            signals.is_open = False
            if is_alone and was_raised_asynchronously(error, calls, clear):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep the traceback, which references the call
            is_reason = isinstance(error, NoCopyError)
            reason = str(error) if is_reason else f"repeating it raised {first_line(error)}"
            for call in calls:
                call.error = reason


def was_raised_asynchronously(error: Exception, calls: Sequence[RanCall], clear: Callable[[], None]) -> bool:
    """Return whether another thread injected an error: it has no message, and repeats do not raise it."""
    if error.args:
        return False
    try:
        for call in calls:
            subject = call.subject
            args = subject.prepare()
            clear()
            result = subject.fn(*args, **subject.kwargs)
            if subject.release is not None:
                subject.release(result)
    except Exception as again:
        return type(again) is not type(error)
    return True


def synchronizer() -> Any:
    """Return a function that waits for the CUDA device; a no-op if this process uses none."""
    return torch.cuda.synchronize if torch.cuda.is_initialized() else no_op


def threads_note(threads: int) -> str:
    """Return a note that a compiled call is not timed in one thread, as torch would recompile it."""
    return f"timed in the program's {threads} threads, which it is compiled for"


def _run(replay: Replay, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the program's own call, and return its result."""
    with replay.recording_masks():
        try:
            return fn(*args, **kwargs)
        except BaseException:
            replay.forget()  # the traceback may outlive the call, and must not reference copies
            raise


def _subject_of_op(call: OpCall, replay: Replay) -> Subject:
    args, must_rewind = call.args, replay.must_rewind

    def prepare() -> tuple[Any, ...]:
        if must_rewind:
            replay.rewind_op()
        return args

    return Subject(call.func, prepare, call.kwargs)


def run_op(call: OpCall) -> tuple[Any, RanOp]:
    """Run an op call for the program, and return its result and the call to repeat.

    The program's call runs first, with all modes of the program open, and its exceptions propagate.
    """
    with modes_disabled():
        replay = Replay(call.leaves)
        replay.refuse(call.skip_reason)
        if replay.skip_reason is None:
            for tensor in call.written:
                replay.save(tensor)
    result = _run(replay, call.func, call.args, call.kwargs)
    replay.settle()
    return result, RanOp(replay, _subject_of_op(call, replay), call.is_on_meta, call)


def run_conversion(call: ConversionCall) -> tuple[Any, Replay]:
    """Run a conversion for the program, and return its result and the state before it."""
    with modes_disabled():
        replay = Replay(call.leaves)
        replay.save_version(call.tensor)  # a conversion runs above autograd, which increments versions
    return _run(replay, call.function, call.args, call.kwargs), replay


def settled_conversion(call: ConversionCall, result: Any, replay: Replay) -> RanConversion:
    """Save the state after a conversion that has run, and return the call to repeat."""
    replay.settle()

    def prepare() -> tuple[Any, ...]:
        replay.rewind_op()
        return call.arguments_of_repetition()

    subject = Subject(call.function, prepare, call.kwargs)
    return RanConversion(replay, subject, are_on_meta([call.tensor, result]), result)


def run_and_measure_call(
    fn: Callable[..., Any], args: tuple[Any, ...], setup: Setup | None, caches: ShardingCaches, plan: Plan
) -> tuple[Any, str, Figures]:
    """Call a function for the program, then repeat it to measure it; return result, mesh and figures.

    Repetitions restore the contents and versions of every tensor that torch writes to, the gradients of every
    leaf involved, the entries of optimizers' states, and random states. Any other side effect of the function
    occurs in each repetition.
    """
    result, ran = run_call(fn, args, setup, plan.agreement)
    check_result("call", result)
    return result, ran.mesh, ran.measure(caches, plan)


def run_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    setup: Setup | None = None,
    agreement: Agreement | None = None,
) -> tuple[Any, RanCallable]:
    """Call a function for the program, and repeat it once to record the state that it keeps between calls."""
    with modes_disabled():
        replay = Replay(ask(tree_leaves, args, []), Storages())
    first_args = call_arguments(args, setup)
    with hidden_from_constructors(UnnoticedMode), WriteRecorder(replay, replay.save) as recorder:
        result = _run(replay, fn, first_args, {})
    mesh = recorder.mesh
    mesh_text = mesh_device_text(tuple(mesh.shape), mesh.device_type) if mesh is not None else ""
    replay.settle()
    replay.refuse(agreed_reason(agreement, replay.skip_reason))

    def prepare() -> tuple[Any, ...]:
        replay.rewind()
        return call_arguments(args, setup)

    subject = Subject(
        fn,
        prepare,
        prepare_propagates=setup is not None,
        release=release_of(result),
        is_one_thread=device_of(mesh_text) != "cuda",  # there, backward runs in the device's thread
    )
    ran = RanCallable(replay, subject, recorder.is_on_meta, mesh_text)
    if replay.skip_reason is None:
        ran.repeat_first(is_alone=agreement is None)
    return result, ran
