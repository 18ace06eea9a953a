"""Repeat a call to measure it, and restore what the program's own call left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from traceback import clear_frames
from typing import Any, ClassVar

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.checks import Setup, call_arguments, check_result
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.results import repeated
from pytest_dtdispatch.core.signatures import device_of, mesh_device_text
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.replay.call import ConversionCall, OpCall, UnnoticedMode, redistribution_text
from pytest_dtdispatch.replay.replay import Before, NotRepeatable, Repeatable, ReplayPhase, agreed_reason
from pytest_dtdispatch.replay.states import leaves_behind
from pytest_dtdispatch.replay.storages import NoCopyError, Storages, keys_of
from pytest_dtdispatch.rounds.plan import Agreement, Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.signals import Signals, nothing_warned
from pytest_dtdispatch.rounds.timing import Prepare, Subject, no_op
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.collectives import collective_of
from pytest_dtdispatch.torchapi.compiler import observe_compiled_code
from pytest_dtdispatch.torchapi.ops import (
    call_from_torch,
    close_modes_opened_since,
    hidden_from_constructors,
    is_op,
    leaves_of,
    op_name,
    open_modes,
    returns_of,
    tree_leaves,
    unnoticed,
    without_outer_modes,
)
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import (
    are_on_meta,
    local_of,
    mesh_among,
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


class WriteRecorder(UnnoticedMode):
    """Mode that saves all state before a whole callable changes it, except tensors that the callable creates.

    Args:
        phase: store of the saved state.
        collectives: list to which outputs of collectives are appended; None to ignore them.

    Attributes:
        mesh: mesh of the first DTensor; None if there is none.
        is_on_meta: whether any DTensor is on meta.
    """

    def __init__(self, phase: ReplayPhase, collectives: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.mesh: Any = None
        self.is_on_meta = False
        self._phase, self._collectives = phase, collectives
        self._created: set[Any] = set()
        self._visited: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OpCall(func, args, kwargs or {})
        tensors = tensors_in(call.leaves())
        with unnoticed():
            self._phase.grown.keep_allocated(tensors)
            if is_op(func):
                self._save(call, tensors)
        result = call.run()
        if not is_op(func):
            return result
        if self._collectives is not None and func.namespace.startswith("_c10d_functional"):
            self._collectives += tensors_in(result)
        arguments = {key for tensor in tensors for key in keys_of(tensor)}
        if arguments <= self._created or all(each.alias_info is None for each in returns_of(func)):
            self._created |= {key for leaf in tensors_in(result) for key in keys_of(leaf)} - arguments
        return result

    def _save(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        """Save the state that an op is about to change."""
        if self.mesh is None:
            self.mesh = mesh_among(tensors)
        self.is_on_meta |= are_on_meta(tensors)
        self._phase.states.random.save_all(call.leaves())
        for leaf in (leaf for tensor in tensors for leaf in leaves_behind(tensor, self._visited)):
            self._phase.states.gradients.save(leaf)
        for tensor in call.written():
            if not keys_of(tensor) <= self._created:
                self._phase.save(tensor)  # first: its reason is more precise than that of the schema
                self._phase.refuse(call.skip_reason())


# The call to measure, its op on local shards if it has one, and figures with notes that precede other notes.
Inspection = tuple[Subject, Subject | None, Figures]


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
        called: context manager that wraps the function which runs repetitions.
    """

    replay: Repeatable
    subject: Subject
    is_on_meta: bool
    is_compiled: bool = field(default=False, init=False)
    collectives: list[torch.Tensor] | None = field(default=None, init=False)

    called: ClassVar[Callable[..., Any]] = staticmethod(call_from_torch)

    def inspect(self, signals: Signals) -> Inspection:
        """Repeat the call once, and return the local ops and collectives that it runs; by default none."""
        return self.subject, None, Figures()

    def skip_reason(self, plan: Plan) -> str | None:
        """Return why no rank measures the call; None if all ranks do."""
        is_timeless = self.is_on_meta and plan.sampler.unit.is_time
        return agreed_reason(plan.agreement, ON_META if is_timeless else None)

    def measure(self, caches: ShardingCaches, plan: Plan, inspects: bool = True) -> Figures:
        """Repeat the call to measure it, then restore the state after the program's own call.

        Args:
            caches: sharding caches.
            plan: rounds and time limit.
            inspects: whether the call is inspected first.
        """
        if (reason := self.skip_reason(plan)) is not None:
            return Figures(notes=(reason,))
        if not caches.readers():
            note = "not measured: this torch does not count lookups of redistribution plans"
            return Figures(notes=(note,))
        one_thread, threads = plan.one_thread and not self.is_compiled, torch.get_num_threads()
        with repetitions([self], one_thread, caches.clear, plan.agreement is None) as outcome:
            signals = outcome.signals
            inspection = self._inspected(signals) if inspects else (self.subject, None, Figures())
            subject, local, noted = inspection
            planned = replace(plan, one_thread=one_thread)
            rounds = Rounds(subject, caches, planned, local, synchronizer(), signals)
            # Add no other function in between: see `rounds/timing.py`.
            with self.called(rounds.run) as call:
                call()
            figures = rounds.figures
            notes, remarks = (*noted.notes, *figures.notes), (*noted.remarks, *figures.remarks)
            outcome.figures = replace(figures, notes=notes, remarks=remarks)
        figures = outcome.figures
        if one_thread == plan.one_thread or threads == 1:
            return figures
        return replace(figures, notes=(*figures.notes, threads_note(threads)))

    def _inspected(self, signals: Signals) -> Inspection:
        found: list[Inspection] = []
        with self.called(lambda: found.append(self.inspect(signals))) as call:
            call()
        return found[0]


@dataclass
class RanOp(RanCall):
    """An op call."""

    call: OpCall

    def inspect(self, signals: Signals) -> Inspection:
        """Repeat a hit, and return the op on local shards and the redistributions that it runs.

        They are recorded, not derived from rules. On a miss, propagation would also run ops on fake tensors.
        """
        redistributed: list[str] = []
        below = LocalOps()

        def record(shard: Any, source: Any, target: Any, *_: Any) -> None:
            if tuple(source.placements) != tuple(target.placements):
                redistributed.append(redistribution_text(source, target))

        with observe.before("redistribution", record):
            repeat_under(below, self.subject, self.subject.prepare(), signals)
        local = local_op(self.call, below.calls)
        notes = (f"redistributes {', '.join(repeated(redistributed))}",) if redistributed else ()
        if isinstance(local, str):
            return self.subject, None, Figures(notes=notes, remarks=(f"no local row: {local}",))
        return self.subject, _subject_of_op(local, self.replay), Figures(notes=notes)


@dataclass
class RanConversion(RanCall):
    """A conversion between a DTensor and a local tensor, or a redistribution."""

    result: Any

    def inspect(self, signals: Signals) -> Inspection:
        """Repeat the conversion, and return the collectives that it runs, in order."""
        subject, below = self.subject, LocalOps()
        again = repeat_under(below, subject, subject.prepare(), signals)
        collectives = [kind for call in below.calls if (kind := collective_of(call.func))]
        if collectives:  # otherwise it would wait for a collective of the program
            wait_for(again)
            subject = replace(subject, release=release_of(self.result))
        return subject, None, Figures(remarks=(f"runs {', '.join(collectives) or 'no collective'}",))


@dataclass
class RanCallable(RanCall):
    """A call of a whole function.

    Attributes:
        mesh: mesh of the first DTensor, as text; empty if there is none.
    """

    mesh: str

    called = nullcontext  # C++ warnings of a whole function are the program's own

    def settled_again(self) -> RanCallable | NotRepeatable:
        """Save the state after later calls of the program, unless they prevent a repetition."""
        replay = self.replay.settled_again()
        return replace(replay, mesh=self.mesh) if isinstance(replay, NotRepeatable) else self

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
    shards = [local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    is_plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)
    if is_plain and all(shard is tensor for shard, tensor in zip_longest(shards, used)):
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
        if one_thread and (threads := torch.get_num_threads()) != 1:
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(1)
        for call in reversed(calls):
            afterwards.callback(call.replay.restore)
        for call in calls:
            if call.replay.states.masks:  # the call changed a mask: also save the masks of new plans
                afterwards.enter_context(call.replay.recording_masks())
            if call.collectives is not None:
                record = partial(_record, call.collectives)
                afterwards.enter_context(observe.around({"collective_output": record}))
                afterwards.callback(wait_for_all, call.collectives)
        afterwards.callback(close_modes_opened_since, open_modes())
        yield


def _record(collectives: list[torch.Tensor], wrap: Callable[..., Any], output: Any) -> Any:
    """Record a collective that a repetition leaves running and that is not in its result."""
    collectives.extend(tree_leaves(output))
    return wrap(output)


@dataclass
class Repeated:
    """Outcome of repetitions.

    Args:
        figures: figures, set by the ``with`` block.
        signals: deferred signals; they are admitted while a call runs.
    """

    figures: Figures = field(default_factory=Figures)
    signals: Signals = field(default_factory=Signals)


@contextmanager
def repetitions(
    calls: Sequence[RanCall],
    one_thread: bool,
    clear: Callable[[], None] = no_op,
    is_alone: bool = True,
) -> Iterator[Repeated]:
    """Repeat calls in a ``with`` block, without visible effects on the program.

    An error of a repetition is reported as a note instead of figures, as the program's own call succeeded.
    Exceptions of a signal handler or of another thread are raised as if the program's own call had raised
    them.

    This is a ``with`` block, not a function, to add no frame between the program and its op: see
    ``rounds/timing.py``.

    Args:
        calls: calls to repeat, alternately.
        one_thread: whether they run in one intra-op thread, or in the program's number of threads.
        clear: function that clears caches before a call is repeated to find the source of an error.
        is_alone: whether a call may be repeated to find it, which is impossible if ranks repeat together.
    """
    outcome = Repeated()
    with outcome.signals, nothing_warned(), restoring(calls, one_thread):
        try:
            yield outcome
        except RanksError:
            raise
        except Exception as error:
            outcome.signals.is_open = False
            if is_alone and is_from_elsewhere(error, calls, clear):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep the traceback, which references the call
            note = (
                str(error) if isinstance(error, NoCopyError) else f"repeating it raised {first_line(error)}"
            )
            outcome.figures = Figures(notes=(note,))


def is_from_elsewhere(error: Exception, calls: Sequence[RanCall], clear: Callable[[], None]) -> bool:
    """Return whether another thread raised an error in this one: it has no text, and is not reproducible."""
    if error.args:
        return False
    try:
        for subject in (call.subject for call in calls):
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


def _run(before: Before, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the program's own call, and return its result."""
    with before.recording_masks():
        try:
            return fn(*args, **kwargs)
        except BaseException:
            before.forget()  # the traceback may outlive the call, and must not reference copies
            raise


def _subject_of_op(call: OpCall, replay: Repeatable) -> Subject:
    args = call.args

    def prepare() -> tuple[Any, ...]:
        replay.rewind_op()
        return args

    return Subject(call.func, prepare if replay.must_rewind else lambda: args, call.kwargs)


def run_op(call: OpCall) -> tuple[Any, RanOp | NotRepeatable]:
    """Run an op call for the program, and return its result and a repeatable call.

    The program's call runs first, with all modes of the program open, and its exceptions propagate.
    """
    with unnoticed():
        before = Before(call.leaves())
        before.refuse(call.skip_reason())
        for tensor in () if before.skip_reason else call.written():
            before.save(tensor)
    result = _run(before, call.func, call.args, call.kwargs)
    replay = before.settled()
    if isinstance(replay, NotRepeatable):
        return result, replay
    return result, RanOp(replay, _subject_of_op(call, replay), are_on_meta(call.leaves()), call)


def run_conversion(call: ConversionCall) -> tuple[Any, Before]:
    """Run a conversion for the program, and return its result and the state before it."""
    with unnoticed():
        before = Before(leaves_of(call.args, call.kwargs))
        if call.tensor is not None:
            before.save_version(call.tensor)  # a conversion runs above autograd, which increments versions
    return _run(before, call.function, call.args, call.kwargs), before


def settled_conversion(call: ConversionCall, result: Any, before: Before) -> RanConversion | NotRepeatable:
    """Return a repeatable call of a conversion that has run."""
    replay = before.settled()
    if isinstance(replay, NotRepeatable):
        return replay

    def prepare() -> tuple[Any, ...]:
        replay.rewind_op()
        return call.arguments_of_repetition()

    subject = Subject(call.function, prepare, call.kwargs)
    return RanConversion(replay, subject, are_on_meta([call.tensor, result]), result)


def run_and_measure_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    setup: Setup | None,
    caches: ShardingCaches,
    plan: Plan,
    name: str = "",
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
) -> tuple[Any, RanCallable | NotRepeatable]:
    """Call a function for the program, and repeat it once to record the state that it keeps between calls."""
    with unnoticed():
        before = Before(ask(tree_leaves, args, []), Storages())
    first_args = call_arguments(args, setup)
    with hidden_from_constructors(UnnoticedMode), WriteRecorder(before) as recorder:
        result = _run(before, fn, first_args, {})
    mesh = recorder.mesh
    mesh_text = mesh_device_text(tuple(mesh.shape), mesh.device_type) if mesh is not None else ""
    replay = before.settled()
    reason = agreed_reason(agreement, replay.reason if isinstance(replay, NotRepeatable) else None)
    if isinstance(replay, NotRepeatable) or reason is not None:
        return result, NotRepeatable(str(reason), mesh_text)

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
    if (reason := _first_repetition(ran, is_alone=agreement is None)) is not None:
        return result, NotRepeatable(reason, mesh_text)
    return result, ran


def _first_repetition(ran: RanCallable, is_alone: bool) -> str | None:
    """Repeat a call, and record tensors that its first run created and collectives that it leaves running.

    Returns:
        Why the call cannot be repeated again; None if it can.
    """
    subject, replay, leaves_collectives = ran.subject, ran.replay, False

    def on_compiled_code() -> None:
        ran.is_compiled = True
        with unnoticed():
            replay.grown.keep_allocated()  # no mode observes the reads of compiled code

    with (
        observe_compiled_code(on_compiled_code),
        hidden_from_constructors(UnnoticedMode),
        repetitions([ran], one_thread=False, is_alone=is_alone) as outcome,
    ):
        args = subject.prepare()
        before, collectives = unwaited(), list[torch.Tensor]()
        result = repeat_under(WriteRecorder(replay, collectives), subject, args, outcome.signals)
        if subject.release is not None:
            subject.release(result)
        leaves_collectives = unwaited() > before
        wait_for_all(collectives)
        replay.settle_repetition()
        del result
    if leaves_collectives and not ran.is_compiled:  # a patch would cause compiled code to recompile
        ran.collectives = []
        ran.subject = replace(subject, release=partial(wait_for_all, ran.collectives))
    return replay.skip_reason or next(iter(outcome.figures.notes), None)
