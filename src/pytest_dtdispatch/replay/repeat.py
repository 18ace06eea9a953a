"""Measure a call by repeating it, and leave everything as the program's own call left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from traceback import clear_frames
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.checks import Setup, call_arguments
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.results import repeated
from pytest_dtdispatch.core.signatures import mesh_device_text
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.replay.call import ConversionCall, OpCall, UnnoticedMode, redistribution_text
from pytest_dtdispatch.replay.replay import NoCopyError, Replay, Storages, keys_of, leaves_behind
from pytest_dtdispatch.rounds.blocks import Blocks
from pytest_dtdispatch.rounds.plan import Agreement, Plan, agreed
from pytest_dtdispatch.rounds.rounds import Prepare, Rounds, Subject, nothing_to_do
from pytest_dtdispatch.rounds.signals import Signals, nothing_warned
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.collectives import collective_of
from pytest_dtdispatch.torchapi.compiler import observe_compiled_code
from pytest_dtdispatch.torchapi.ops import (
    close_modes_opened_since,
    is_collective,
    is_op,
    leaves_of,
    op_name,
    open_modes,
    own_warnings,
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

__tracebackhide__ = True  # a test that fails here shows its own line


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
    shards = [local_of(leaf) for leaf in call.leaves() if isinstance(leaf, torch.Tensor)]
    used = [leaf for leaf in local.leaves() if isinstance(leaf, torch.Tensor)]
    is_plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in used)
    if is_plain and all(shard is tensor for shard, tensor in zip_longest(shards, used)):
        return local, ""
    return None, "runs on other tensors than its local shards"


@contextmanager
def left_as_it_was(calls: Sequence[RanCall], one_thread: bool) -> Iterator[None]:
    """Repeat calls below the modes of the program; then close what they left open, and put all back.

    In one thread it is dispatch that is timed: a local op that torch splits over threads waits, where other
    processes keep the cores busy, a whole time slice for its second thread.
    """
    with without_outer_modes(), ExitStack() as afterwards:
        if one_thread and (threads := torch.get_num_threads()) != 1:
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(1)
        for call in reversed(calls):
            afterwards.callback(call.replay.restore)
        for call in calls:
            if call.replay.masks:  # the call changed one: those of new plans are noted too
                afterwards.enter_context(call.replay.watching_masks())
            if call.collectives is not None:
                record = partial(_recorded, call.collectives)
                afterwards.enter_context(observe.patch({"collective output": record}))
                afterwards.callback(wait_for_all, call.collectives)
        afterwards.callback(close_modes_opened_since, open_modes())
        yield


def _recorded(collectives: list[torch.Tensor], wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Note collectives that repetitions leave and their results do not show."""

    def recorded(output: Any) -> Any:
        collectives.extend(tree_leaves(output))
        return wrap(output)

    return recorded


@dataclass
class Repeated:
    """What repetitions gave: figures, to be set, and signals, to be let in while the call runs."""

    figures: Figures = field(default_factory=Figures)
    signals: Signals = field(default_factory=Signals)


@contextmanager
def repetitions(
    calls: Sequence[RanCall],
    one_thread: bool,
    clear: Callable[[], None] = nothing_to_do,
    is_alone: bool = True,
) -> Iterator[Repeated]:
    """Repeat calls in a ``with`` block, in one intra-op thread or in the program's, unnoticed by the program.

    What a repetition raises becomes a note in place of figures, as the program's own call succeeded. What a
    signal handler or another thread raises, the program sees as if its own call had raised it.

    It is no function that is given what to repeat, as each frame between the program and its op makes a miss
    longer: propagation walks the stack.

    Args:
        calls: what is repeated, in turn.
        one_thread: whether in one intra-op thread, or in the program's.
        clear: empties caches, before a call is made once more to see where an error comes from.
        is_alone: whether it may be made once more: not where ranks repeat together.
    """
    result = Repeated()
    with result.signals, nothing_warned(), left_as_it_was(calls, one_thread):
        try:
            yield result
        except RanksError:
            raise
        except Exception as error:
            result.signals.is_open = False
            if is_alone and is_from_elsewhere(error, calls, clear):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep it, and with it what was repeated
            why = str(error) if isinstance(error, NoCopyError) else f"repeating it raised {first_line(error)}"
            result.figures = Figures(notes=(why,))


def is_from_elsewhere(error: Exception, calls: Sequence[RanCall], clear: Callable[[], None]) -> bool:
    """Whether another thread made this one raise it: it has no text, and does not come again."""
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
    """Return what waits for the device, where this process uses one."""
    return torch.cuda.synchronize if torch.cuda.is_initialized() else nothing_to_do


ON_META = "not timed: DTensors on meta have meta kernels; --dtdispatch-metric counts and instructions work"
ON_ANOTHER_RANK = "runs once: another rank cannot repeat it"
NOT_COUNTED = "not measured: this torch does not count what its plans of redistribution are asked for"


def agreed_reason(agreement: Agreement | None, reason: str) -> str:
    """Return why a call is not repeated on this rank, or else on another: memory may lack on one of them."""
    [is_repeated] = agreed(agreement, "the repetition", not reason)
    return reason or ON_ANOTHER_RANK * (not is_repeated)


class Found(NamedTuple):
    """What a repetition showed of an op, or of a conversion, before it is measured.

    Args:
        subject: what is measured.
        local: the op on local shards, which is measured beside it.
        notes: what the figures are to say first.
        remarks: what explains them, in front of other remarks.
    """

    subject: Subject
    local: Subject | None = None
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass
class RanCall:
    """A call that the program has made, and that can be repeated to measure it, as often as wanted.

    Attributes:
        replay: puts back what the call changes.
        subject: what is repeated.
        look: repeats an op, or a conversion, to see what it comes down to; None of a whole callable.
        place: where a whole callable ran: the mesh of its first op.
        is_compiled: whether it entered compiled code.
        collectives: is given those that repetitions leave and their results do not show, to be waited for.
        is_on_meta: whether a DTensor that took part has no memory.
    """

    replay: Replay
    subject: Subject
    look: Callable[[Signals], Found] | None = None
    place: str = ""
    is_compiled: bool = False
    collectives: list[torch.Tensor] | None = None
    is_on_meta: bool = False

    @property
    def why_not_repeatable(self) -> str:
        """Why the call runs once; empty where it can be repeated."""
        return self.replay.why_not_repeatable

    def why_not_measured(self, plan: Plan) -> str:
        """Return why no rank measures the call; empty where all of them do."""
        is_timeless = self.is_on_meta and plan.sampler.unit.is_time
        return agreed_reason(plan.agreement, self.why_not_repeatable or ON_META * is_timeless)

    @contextmanager
    def repeating(self, one_thread: bool) -> Iterator[Prepare]:
        """Return what prepares each repetition, of a call that can be repeated; then put everything back."""
        with Signals() as signals, left_as_it_was([self], one_thread):
            try:
                signals.let_in()
                yield self.subject.prepare
            finally:
                signals.is_open = False

    def measure(self, caches: ShardingCaches, plan: Plan, label: str = "", mesh: str = "") -> Figures:
        """Repeat the call, and leave behind what the program's own call left behind.

        Args:
            caches: of sharding propagation.
            plan: how much is measured.
            label: of the row that the figures make, if a gate may judge it.
            mesh: of the row.
        """
        if why_not := self.why_not_measured(plan) or NOT_COUNTED * (not caches.readers()):
            return Figures(notes=(why_not,))
        one_thread, threads = plan.one_thread and not self.is_compiled, torch.get_num_threads()
        blocks = Blocks(plan, label, mesh)
        while blocks.wants_more():
            with repetitions([self], one_thread, caches.clear, plan.agreement is None) as outcome:
                signals = outcome.signals
                found = self._found(signals)
                rounds = Rounds(found.subject, caches, plan, found.local, synchronizer(), signals)
                # Called by nothing of ours: each frame between the program and its op makes a miss longer.
                if self.look:
                    with own_warnings() as call:
                        call(rounds.run)
                else:
                    rounds.run(0.0)
                figures = rounds.figures
                notes, remarks = (*found.notes, *figures.notes), (*found.remarks, *figures.remarks)
                outcome.figures = replace(figures, notes=notes, remarks=remarks)
            blocks.add(outcome.figures)
        figures = blocks.figures
        if one_thread == plan.one_thread or threads == 1:
            return figures
        return replace(figures, notes=(*figures.notes, threads_note(threads)))

    def _found(self, signals: Signals) -> Found:
        """Look what the call comes down to."""
        if self.look is None:
            return Found(self.subject)
        look, found = self.look, list[Found]()

        def looked(element: float) -> float:
            found.append(look(signals))
            return element

        with own_warnings() as call:
            call(looked)
        return found[0]


def repeat_under(
    mode: AbstractContextManager[Any], subject: Subject, args: tuple[Any, ...], signals: Signals
) -> Any:
    """Make a call once more, below a mode of ours or beside a counter, which sees what it runs."""
    with mode:
        try:
            signals.let_in()
            return subject.fn(*args, **subject.kwargs)
        finally:
            signals.is_open = False


def _made(replay: Replay, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the program's own call, and return its result."""
    with replay.watching_masks():
        try:
            return fn(*args, **kwargs)
        except BaseException:
            replay.forget()  # a traceback that lives on must not hold what was saved
            raise


def run_op(call: OpCall) -> tuple[Any, RanCall]:
    """Make an op call as the program asked for it, and return what can repeat it.

    The program's call comes first and with every mode of the program open; what it raises, it raises here.
    """
    with unnoticed():
        replay = Replay(call.leaves(), why_not_repeatable=call.why_not_repeatable())
        for tensor in () if replay.why_not_repeatable else call.written():
            replay.save(tensor)
    result = _made(replay, call.func, call.args, call.kwargs)
    replay.settle()
    subject = _subject_of_op(call, replay)
    look = partial(_look_at_op, call, subject, replay)
    return result, RanCall(replay, subject, look, is_on_meta=are_on_meta(call.leaves()))


def _subject_of_op(call: OpCall, replay: Replay) -> Subject:
    args = call.args

    def prepare() -> tuple[Any, ...]:
        replay.rewind_op()
        return args

    return Subject(call.func, prepare if replay.must_rewind else lambda: args, call.kwargs)


def _look_at_op(call: OpCall, subject: Subject, replay: Replay, signals: Signals) -> Found:
    """Find what a steady call comes down to: an op on the local shards, and redistributions.

    The call is made once more, on a hit, and what it runs below is recorded: nothing is guessed from rules.
    On a miss it would not do: propagation runs ops on fake tensors, and they would be recorded too.
    """
    redistributed: list[str] = []
    below = LocalOps()

    def note(shard: Any, source: Any, target: Any, *_: Any) -> None:
        if tuple(source.placements) != tuple(target.placements):
            redistributed.append(redistribution_text(source, target))

    with observe.before("redistribution", note):
        repeat_under(below, subject, subject.prepare(), signals)
    local, why_none = _local_among(call, below.calls)
    remarks = () if local else (f"no local row: {why_none}",)
    notes = (f"redistributes {', '.join(repeated(redistributed))}",) if redistributed else ()
    return Found(subject, _subject_of_op(local, replay) if local else None, notes, remarks)


def run_conversion(call: ConversionCall) -> tuple[Any, RanCall]:
    """Make a conversion as the program asked for it, and return what can repeat it, once it is settled."""
    with unnoticed():
        replay = Replay(leaves_of(call.args, call.kwargs))
        if call.tensor is not None:
            replay.note_version(call.tensor)  # it stands above autograd, which counts versions
    result = _made(replay, call.function, call.args, call.kwargs)

    def prepare() -> tuple[Any, ...]:
        replay.rewind_op()
        return call.again()

    subject = Subject(call.function, prepare, call.kwargs)
    look = partial(_look_at_conversion, subject, result)
    return result, RanCall(replay, subject, look, is_on_meta=are_on_meta([call.tensor, result]))


def _look_at_conversion(subject: Subject, result: Any, signals: Signals) -> Found:
    """Repeat a conversion, and name the collectives that it runs, in their order."""
    below = LocalOps()
    again = repeat_under(below, subject, subject.prepare(), signals)
    collectives = [kind for call in below.calls if (kind := collective_of(call.func))]
    if collectives:  # else what is waited for would be a collective of the program's own
        wait_for(again)
        subject = replace(subject, release=release_of(result))
    return Found(subject, remarks=(f"runs {', '.join(collectives) or 'no collective'}",))


class WriteWatch(UnnoticedMode):
    """See what a callable is about to write to, less what it makes itself, and what else is to be put back.

    Args:
        replay: notes random states and gradients of what takes part, and the first op that runs once.
        save: is given each tensor right before it is written to.
        collectives: is given the outputs of those that run.

    Attributes:
        mesh: of the first DTensor.
        is_on_meta: whether any DTensor was.
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
        call = OpCall(func, args, kwargs or {})
        tensors = tensors_in(call.leaves())
        with unnoticed():
            self._replay.grown.keep(tensors)
            if is_op(func):
                self._before(call, tensors)
        result = call.run()
        if not is_op(func):
            return result
        if self._collectives is not None and is_collective(func):
            self._collectives += tensors_in(result)
        arguments = {key for tensor in tensors for key in keys_of(tensor)}
        if arguments <= self._created or all(each.alias_info is None for each in returns_of(func)):
            self._created |= {key for leaf in tensors_in(result) for key in keys_of(leaf)} - arguments
        return result

    def _before(self, call: OpCall, tensors: list[torch.Tensor]) -> None:
        """Look at an op that is about to run."""
        if self.mesh is None:
            self.mesh = mesh_among(tensors)
        self.is_on_meta |= are_on_meta(tensors)
        self._replay.random.watch(call.leaves())
        for leaf in (leaf for tensor in tensors for leaf in leaves_behind(tensor, self._visited)):
            self._replay.gradients.note(leaf)
        replay = self._replay
        for tensor in call.written():
            if not keys_of(tensor) <= self._created:
                self._save(tensor)  # first: what it left may tell more than its schema
                replay.why_not_repeatable = replay.why_not_repeatable or call.why_not_repeatable()


def threads_note(threads: int) -> str:
    """Why a compiled call is not timed in one thread: torch would compile it anew, which is noticed."""
    return f"timed in the program's {threads} threads, which it is compiled for"


def run_and_measure_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    setup: Setup | None,
    caches: ShardingCaches,
    plan: Plan,
    name: str = "",
) -> tuple[Any, str, Figures]:
    """Call a function for the program, then repeat it, putting back what can be put back.

    Put back are the contents and versions of every tensor that torch was asked to write to, the gradients of
    every leaf that took part, the entries of optimizers' states, and random states. Anything else that the
    function changes, it changes in each repetition.
    """
    result, ran = run_call(fn, args, setup, plan.agreement)
    return result, ran.place, ran.measure(caches, plan, name, ran.place)


def run_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    setup: Setup | None = None,
    agreement: Agreement | None = None,
) -> tuple[Any, RanCall]:
    """Call a function for the program, and once more to see what it keeps from one call to the next."""
    with unnoticed():
        replay = Replay(ask(tree_leaves, args, []), Storages())
    first_args = call_arguments(args, setup)
    with WriteWatch(replay, replay.save) as watch:
        result = _made(replay, fn, first_args, {})

    def prepare() -> tuple[Any, ...]:
        replay.rewind()
        return call_arguments(args, setup)

    def entered() -> None:
        ran.is_compiled = True
        with unnoticed():
            replay.grown.keep()  # no mode sees what compiled code reads

    subject = Subject(fn, prepare, prepare_propagates=setup is not None, release=release_of(result))
    mesh = watch.mesh
    place = mesh_device_text(tuple(mesh.shape), mesh.device_type) if mesh is not None else ""
    ran = RanCall(replay, subject, place=place, is_on_meta=watch.is_on_meta)
    replay.settle()
    replay.why_not_repeatable = agreed_reason(agreement, replay.why_not_repeatable)
    if not ran.why_not_repeatable:
        with observe_compiled_code(entered):
            _settle_repetition(ran, is_alone=agreement is None)
    return result, ran


def _settle_repetition(ran: RanCall, is_alone: bool) -> None:
    """Repeat a call, to save what it kept from its first time, and to see what collectives it leaves."""
    subject, replay, leaves_collectives = ran.subject, ran.replay, False
    with repetitions([ran], one_thread=False, is_alone=is_alone) as outcome:
        args = subject.prepare()
        before, collectives = unwaited(), list[torch.Tensor]()
        again = WriteWatch(replay, replay.save_made, collectives)
        result = repeat_under(again, subject, args, outcome.signals)
        if subject.release is not None:
            subject.release(result)
        leaves_collectives = unwaited() > before
        wait_for_all(collectives)
        replay.settle_repetition()
        del result
    replay.why_not_repeatable = replay.why_not_repeatable or next(iter(outcome.figures.notes), "")
    if leaves_collectives and not ran.is_compiled:  # a hook would make compiled code compile again
        ran.collectives = []
        ran.subject = replace(subject, release=partial(wait_for_all, ran.collectives))
