"""Counter of the dispatcher's work in a step: hits, propagations, transfers, growth."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.core.trail import CalledOp, RanCollective, Trail
from pytest_dtdispatch.errors import warn
from pytest_dtdispatch.lines.finder import LineFinder
from pytest_dtdispatch.replay.guard import MeasurementLock
from pytest_dtdispatch.replay.modes import UnnoticedMode
from pytest_dtdispatch.steps.events import (
    AnyEvent,
    Collective,
    Miss,
    OpCalls,
    QueriedCache,
    Remedy,
)
from pytest_dtdispatch.steps.growth import LiveObjects
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.steps.reasons import Called, CallPosition, Reason, Seen, describe
from pytest_dtdispatch.steps.transfers import TransferRecorder
from pytest_dtdispatch.torchapi.autograd import is_in_backward
from pytest_dtdispatch.torchapi.calls import OpCall, propagated_call
from pytest_dtdispatch.torchapi.collectives import observe_transfers
from pytest_dtdispatch.torchapi.groups import is_first_of_group
from pytest_dtdispatch.torchapi.mesh_dims import MESH_DIMS
from pytest_dtdispatch.torchapi.observe import observe_ops
from pytest_dtdispatch.torchapi.ops import hidden_from_constructors, open_modes, takes_tensors
from pytest_dtdispatch.torchapi.profiling import Function, ProfilerRange
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.reads import observe_reads
from pytest_dtdispatch.torchapi.signatures import signature_of


def call_lines(calls: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Format calls (signature, source line), with one line for each signature.

    Example:
        >>> call_lines([("add@4", "a.py:1"), ("mm@4", "a.py:2"), ("add@4", "a.py:1")])
        ('add@4 (2x), at a.py:1', 'mm@4, at a.py:2')
    """
    return tuple(
        f"{signature}{f' ({len(at)}x)' if len(at) > 1 else ''}, at {', '.join(dict.fromkeys(at))}"
        for signature, at in grouped(calls).items()
        if signature
    )


C = TypeVar("C", bound="OpCounter")
NoteTrail = Callable[[Trail], object]


class ThreadState(threading.local):
    """State of a thread, with the position of its calls in the step.

    Torch counts native cache hits; we are notified of all other calls. If a thread also calls ops between
    steps, positions in a step begin after its last call that we were notified of.
    """

    depth = 0  # number of running propagations, which may be nested
    outermost: Any = None  # range of the outermost one
    queried = QueriedCache.NONE
    python_entries = 0
    clears = 0

    def __init__(self, keys: Iterator[int], caches: ShardingCaches) -> None:
        self.key = next(keys)  # 0 for that of the step; the system reuses the identifiers of dead threads
        self._caches = caches
        self._lap = self._other_calls = 0
        # Hits and misses of the native cache: before the step, and at the last reading.
        self._before = self._stats = (0, 0)

    def begin(self, lap: int) -> None:
        """Begin a step in the thread that runs it."""
        self._stats = self._caches.native_stats()
        self._enter(lap)

    def native(self) -> tuple[int, int]:
        """Return hits and misses of the native cache in this step, including those before it was cleared."""
        hits, misses = self._caches.native_stats()
        return hits - self._before[0], misses - self._before[1]

    def record_call(self, lap: int) -> CallPosition:
        """Record a call that was not a native cache hit; return its position."""
        self._enter(lap)
        self._other_calls += 1
        return self.last_call(lap)

    def last_call(self, lap: int) -> CallPosition:
        """Return the position of the latest call."""
        self._enter(lap)
        self._stats = self._caches.native_stats()
        return CallPosition(self.key, self._stats[0] - self._before[0] + self._other_calls - 1, self.clears)

    def cleared(self, hits: int, misses: int) -> None:
        """Continue with the hits and misses of this step before the native cache was cleared."""
        self._before, self._stats = (-hits, -misses), (0, 0)
        self.clears += 1

    def _enter(self, lap: int) -> None:
        if lap != self._lap:
            self._lap, self._other_calls, self._before = lap, 0, self._stats


class _Propagated(NamedTuple):
    """A call that propagated."""

    schema: Any  # references specs: it must not outlive the lap, because live specs are counted at its end
    queried: QueriedCache
    error: str
    at: CallPosition
    place: CodePlace
    is_direct: bool


class OpCounter:
    """Counter of hits, propagations and cache growth, and of transfers while they are recorded.

    Use it as a context manager, in one thread. It clears and repeats nothing, and does not slow down hits of
    the native cache.

    Args:
        base: function that calls the step; its line is not part of the program.
    """

    purpose: str  # of the measurement that it is, in the error of another one
    lists_calls = True

    def __init__(self, base: Function | None = None) -> None:
        self._caches = ShardingCaches()
        self._seen = Seen()
        self._lap = 0
        self._thread = ThreadState(itertools.count(), self._caches)
        self._has_threads = False  # whether a thread that is not autograd's has called ops
        self._lines = LineFinder(base)
        self._log: list[Called | _Propagated | AnyEvent] = []
        self._transfers = TransferRecorder(self._lines, self._log)
        self._flow = self._transfers.flow
        self._open, self._recording = ExitStack(), ExitStack()
        self.records_transfers = False
        self._notes: CallNotes | None = None
        self._noting = ExitStack()
        self._signatures: dict[tuple[Signature, CodePlace], None] = {}
        self._begin()

    def __enter__(self: C) -> C:
        with ExitStack() as entered:
            self._install(entered.enter_context(MeasurementLock(self.purpose)).contexts)
            self._open = entered.pop_all()
        self._entries = self._caches.entries()
        self._begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def _install(self, stack: ExitStack) -> None:
        """Install all patches and contexts of counting."""
        stack.enter_context(self._lines)
        stack.enter_context(observe_ops(self))
        stack.callback(self.skip_transfers)
        stack.callback(self._noting.close)
        stack.callback(self.end_notes)

    def record_transfers(self) -> None:
        """Start recording transfers."""
        self._transfers.begin_step()
        self._recording.enter_context(observe_transfers(self._transfers))
        self._recording.enter_context(self._transfers.origins.observe())
        self._recording.enter_context(observe_reads(self._transfers))
        self.records_transfers = True

    def skip_transfers(self) -> None:
        """Stop recording transfers."""
        self.records_transfers = False
        self._recording.close()

    def note(self, call: OpCall) -> Any:
        """Run a call, and record it with its line, to explain later misses and locate backward."""
        place = self._lines.record()
        result = self._flow.run(call, place)
        if call.has_dtensor:
            called = describe(call, self._thread.last_call(self._lap))
            if self.lists_calls:
                signature = signature_of(call)
                self._signatures[signature, place] = None
                called = called._replace(text=(str(signature), str(place)))
            self._log.append(called)
        return result

    def begin_notes(self) -> None:
        """Start recording all ops, unless a mode of the program is open: it may be closed before ours."""
        if not open_modes():
            self._noting.enter_context(hidden_from_constructors(UnnoticedMode))
            self._notes = CallNotes(self)
            self._notes.__enter__()

    def record_flow(self, is_on: bool) -> None:
        """Begin to record the flow of data from here to the end of the step, or stop."""
        self._flow.is_on = is_on
        if not self._log:  # before the first op of a step
            self._is_recorded = is_on

    def end_notes(self) -> None:
        """Stop recording ops. The mode stays open while a later mode of the program is open."""
        if self._notes is None:
            return
        self.record_flow(False)
        self._notes.is_on = False
        if open_modes()[-1:] == [self._notes]:
            self._notes.__exit__(None, None, None)
            self._noting.close()
            self._notes = None

    def lap(self) -> StepCounts:
        """Return the counts since the last lap, or since entry, and begin a new lap."""
        counts = self._counted()
        before, self._entries = self._entries, self._caches.entries()
        self._begin()
        gained = ((name, count - before[name]) for name, count in self._entries.items())
        return replace(counts, cache_growth=(*counts.cache_growth, *gained))

    def _counted(self) -> StepCounts:
        """Return the counts of this lap without the growth of caches, and drop all references to specs."""
        native_hits, native_misses = self._thread.native()
        propagated = (entry for entry in self._log if isinstance(entry, _Propagated))
        native = [one for one in propagated if one.queried is QueriedCache.NATIVE]
        self._check(native_misses, native)
        native_entries = sum(not one.error for one in native)
        explained = self._explained()
        events = tuple(self._transfers.completed(explained) if self._is_recorded else explained)
        is_recorded = self._is_recorded and self._flow.is_whole and not self._has_threads
        ops: list[OpCalls] = []
        for (op, place), each in self._flow.calls.items() if is_recorded else ():
            is_alike, is_independent = len(each.layouts) == 1, len(each.floors) == 1 and not each.is_chain
            if each.elements:  # autograd allows no write to a slice of `unbind`
                is_independent = not any(memory.own_writes for memory in each.tensors.values())
            numbers = each.count, len(each.tensors), is_alike, is_independent, each.is_pointwise
            is_one = len(each.replacements) == len(each.options) == 1 and 2 * each.count >= each.elements
            replacement = next(iter(each.replacements)) if is_one else ""
            ops.append(OpCalls(op, *numbers, replacement, via=each.via, place=place))
        called = call_lines(entry.text for entry in self._log if isinstance(entry, Called))
        self._log.clear()
        return StepCounts(
            hits=native_hits + self._python_hits,
            unpropagated=self._unpropagated,
            events=events,
            called=called,
            cache_growth=(("native", native_entries),) if self._caches.has_native else (),
            is_recorded=is_recorded,
            ops=tuple(ops),
            groups=self._transfers.groups() if is_recorded else (),
            optimizers=self._transfers.optimizer_steps(),
        )

    def _begin(self) -> None:
        self._transfers.begin_step()
        self._begin_lap()

    def _begin_lap(self) -> None:
        """Begin a lap after one whose transfers and ops were not recorded."""
        self._lap += 1
        self._thread.begin(self._lap)
        self._lines.begin_step()
        self._is_recorded = self._flow.is_on  # whether all ops of the lap are recorded
        self._log.clear()
        self._python_hits = self._unpropagated = 0

    # Each method receives the torch function and must call it.

    def on_native_miss(self, slow_path: Function, *args: Any) -> Any:
        """Record that the native cache was queried; the propagation inside is reported separately."""
        with patch.object(self._thread, "queried", QueriedCache.NATIVE):
            return slow_path(*args)

    def on_propagation(self, propagate: Function, schema: Any) -> Any:
        """Count a propagation that bypasses the Python cache."""
        return self._query(propagate, schema, self._thread.queried, lambda: True)

    def on_python_cache(self, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a hit or a miss of the Python cache."""
        if len(args) != 1 or kwargs:
            return cache(*args, **kwargs)  # raises torch's error
        [schema] = args
        info = cache.cache.cache_info
        before = info()
        if before.currsize < self._thread.python_entries:
            self._thread.clears += 1
        try:
            return self._query(cache, schema, QueriedCache.PYTHON, lambda: info().misses > before.misses)
        finally:
            self._thread.python_entries = info().currsize

    def on_tensor_meta(self, infer: Function, *args: Any, **kwargs: Any) -> Any:
        """Record the propagation in a profile: only here it is certain that the Python cache missed."""
        if self._thread.depth == 1:
            self._thread.outermost.show()
        return infer(*args, **kwargs)

    def on_custom_handler(self, handler: Function, *args: Any, **kwargs: Any) -> Any:
        """Count an op whose handler does not query a cache."""
        before = self._thread.last_call(self._lap)
        result = handler(*args, **kwargs)
        if self._thread.last_call(self._lap) == before:
            self._unpropagated += 1
            self._thread.record_call(self._lap)
        return result

    def on_native_clear(self, clear: Function, *args: Any, **kwargs: Any) -> None:
        """Save the counters, which clearing the cache resets."""
        counted = self._thread.native()
        clear(*args, **kwargs)
        self._thread.cleared(*counted)

    def _query(
        self, query: Function, schema: Any, queried: QueriedCache, has_propagated: Callable[[], bool]
    ) -> Any:
        thread, error = self._thread, ""
        profiled = ProfilerRange("miss", lambda: str(signature_of(propagated_call(schema))))
        if not thread.depth:
            thread.outermost = profiled
        thread.depth += 1
        try:
            return query(schema)
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            thread.depth -= 1
            profiled.end()
            if not thread.depth:
                thread.outermost = None  # it references specs
                at = thread.record_call(self._lap)
                self._has_threads |= thread.key > 0 and not is_in_backward()
                if has_propagated():
                    place, is_direct = self._lines.here(), self._lines.frames.is_called_directly()
                    self._log.append(_Propagated(schema, queried, error, at, place, is_direct))
                else:
                    self._python_hits += 1

    def _check(self, native_misses: int, native: Sequence[_Propagated]) -> None:
        """Compare the recorded misses of the native cache with torch's counter for this thread."""
        recorded = sum(one.at.thread == 0 for one in native)
        if recorded != native_misses:
            warn(
                f"misses of the native cache: {recorded} were recorded, but torch counts {native_misses}: "
                "the caches were cleared, or ops were propagated, without a notification",
                stacklevel=3,
            )

    def _explained(self) -> Iterator[AnyEvent]:
        """Yield the events in order, with the reason of each miss."""
        for entry in self._log:
            if isinstance(entry, _Propagated):
                call = propagated_call(entry.schema)
                called = describe(call, entry.at)
                signature = signature_of(call)
                if self.lists_calls:
                    self._signatures[signature, entry.place] = None
                yield self._miss(entry, call, called, str(signature))
                self._seen.note(called)
            elif isinstance(entry, Called):
                self._seen.note(entry)
            else:
                yield entry

    def _miss(self, one: _Propagated, call: OpCall, called: Called, signature: str) -> Miss:
        """Return the event of a propagation; the remedy of a differing value depends on the op's schema."""
        if one.error:
            reason = Reason(f"propagation raised {one.error}, which is not cached", remedy=Remedy.UNCACHED)
        elif one.queried is QueriedCache.NONE:
            reason = Reason("no cache was queried: the program is traced, or a mode bypasses the caches")
        else:
            reason = self._seen.why(called)
        remedy = reason.remedy
        if remedy is Remedy.NUMBER:
            names = frozenset(name.partition("[")[0] for name in reason.arguments)
            numbers = frozenset(each.name for each, value in call.named() if type(value) in (int, float))
            if not takes_tensors(call.func, names, numbers - names):
                # Arguments that are or determine sizes: padding makes them equal.
                sizes = {"size", "end", "length", "repeats", "split_size", "split_sizes", "pad"}
                remedy = Remedy.SHAPE if sizes.issuperset(names) else Remedy.NONE
        return Miss(
            signature=signature,
            reason=reason.text,
            queried=one.queried,
            cause=reason.without_values or reason.text,
            call=one.at.call,
            elsewhere=one.at.thread > 0,
            remedy=remedy,
            values=reason.values,
            mesh=tuple(call.mesh.shape),
            is_direct=one.is_direct,
            place=one.place,
        )


class CallNotes(UnnoticedMode):
    """Mode that records all DTensor ops, to compare later misses with them.

    It is switched off, but not closed, while it is not the innermost mode.
    """

    def __init__(self, counter: OpCounter, records_flow: bool = True) -> None:
        super().__init__()
        self.is_on = True
        self._counter, self._records_flow = counter, records_flow

    def __enter__(self) -> CallNotes:
        self._counter.record_flow(self._records_flow)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._counter.record_flow(False)
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        if not self.is_on:
            return func(*args, **kwargs or {})
        return self._counter.note(OpCall(func, args, kwargs))


MAX_RECORDED = 20_000  # calls and transfers in one step


class StepCounter(OpCounter):
    """Counter of all that happens in steps, with their transfers, and the growth of live objects.

    Args:
        base: function that calls the step; its line is not part of the program.
        note: function that receives the trail on exit, even if the program raised; None without one.
    """

    purpose = "steps are counted"

    def __init__(self, base: Function | None = None, note: NoteTrail | None = None) -> None:
        super().__init__(base)
        self._note = note
        self._collectives: list[Collective] = []  # of earlier laps

    def _install(self, stack: ExitStack) -> None:
        super()._install(stack)
        self.record_transfers()
        MESH_DIMS.find_meshes()  # before they are frozen
        self._live = LiveObjects()
        stack.callback(self._live.close)

    def __exit__(self, *exception: Any) -> None:
        try:
            if self._note is not None:
                self._note(self.trail())
        finally:
            super().__exit__(*exception)

    def _counted(self) -> StepCounts:
        counts = super()._counted()
        self._collectives += counts.of(Collective)
        return replace(self._live.with_growth(counts), mesh_dims=MESH_DIMS.names())

    def trail(self) -> Trail:
        """Return collectives and signatures since entry, with those of the running lap."""
        ran = [*self._collectives, *(entry for entry in self._log if isinstance(entry, Collective))]
        lines = (each.place.line_text if each.place else "" for each in ran)
        return Trail(
            tuple(RanCollective(each.kind, line, each.bytes) for each, line in zip(ran, lines, strict=True)),
            tuple(CalledOp(of.full, place.line_text, prod(of.mesh)) for of, place in self._signatures),
        )


class LoopCounter(OpCounter):
    """Counter of the steps of a loop. Steps whose transfers are not recorded have none."""

    purpose = "a StepWatch is open"
    lists_calls = False

    def __init__(self) -> None:
        super().__init__()
        self.is_first_rank: bool | None = None  # of the process group of the first recorded op; None without

    def quiet_lap(self) -> int | None:
        """Begin a lap and return the number of calls of the last one if it had only hits; else return None.

        This is the fast path of a watch: most steps have only hits.
        """
        hits, misses = self._thread.native()
        has_events = self._log or self.records_transfers or misses or hits < 0
        if has_events or self._caches.entries() != self._entries:
            return None
        calls = hits + self._python_hits + self._unpropagated
        self._begin_lap()
        return calls

    def note(self, call: OpCall) -> Any:
        """Run and record a call, up to a maximum for programs that never end a step."""
        if self.is_first_rank is None:
            self.is_first_rank = is_first_of_group()
        if len(self._log) >= MAX_RECORDED:
            self._is_recorded = False
            self.skip_transfers()
            self.end_notes()
        return super().note(call)

    def noted_ops(self) -> Counter[str]:
        """Count the recorded calls of this lap by op."""
        return Counter(entry.op for entry in self._log if isinstance(entry, Called))
