"""Count what a step makes the dispatcher do, as torch tells of it: hits, propagations, transfers, growth."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.errors import warn
from pytest_dtdispatch.lines.finder import PlaceFinder
from pytest_dtdispatch.replay.call import (
    OpCall,
    UnnoticedMode,
    dtype_text,
    has_dtensor,
    placement_text,
    shape_text,
    signature_of,
)
from pytest_dtdispatch.replay.guard import MeasurementLock
from pytest_dtdispatch.steps.events import (
    EXPLICIT,
    AnyEvent,
    Collective,
    Miss,
    QueriedCache,
    Redistribution,
    Remedy,
    Unwrapping,
    Wrapping,
    change_text,
)
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.steps.reasons import Called, CallPosition, Reason, Seen, describe
from pytest_dtdispatch.torchapi.collectives import observe_transfers
from pytest_dtdispatch.torchapi.observe import Conversion, Converter, observe_ops
from pytest_dtdispatch.torchapi.ops import leaves_of, op_name, open_modes, takes_tensor
from pytest_dtdispatch.torchapi.profiling import ProfilerRange
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import (
    TensorNumbers,
    ask_tensor,
    has_graph,
    is_group_fake,
    is_local_mode_open,
    is_tensor,
    local_of,
    shards_of_simulated_ranks,
    spec_type,
    tensor_traits,
    version_of,
)


def call_lines(calls: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """List calls (signature, source line), equal signatures once.

    Example:
        >>> call_lines([("add@4", "a.py:1"), ("mm@4", "a.py:2"), ("add@4", "a.py:1")])
        ('add@4 (2x), at a.py:1', 'mm@4, at a.py:2')
    """
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for signature, line in calls:
        lines[signature].append(line)
    return tuple(
        f"{signature}{f' ({len(at)}x)' if len(at) > 1 else ''}, at {', '.join(dict.fromkeys(at))}"
        for signature, at in lines.items()
        if signature
    )


class ThreadState(threading.local):
    """What is going on in a thread. Its calls are counted, so that a call of one step is found in the next.

    Hits of the native cache are torch's to count, and all other calls are told of. Of a thread that makes
    calls between steps as well, the first place in a step is that after its last call that was told of.
    """

    depth = 0  # propagations that are running: one may need others
    outermost: Any = None  # times the outermost of them
    queried = QueriedCache.NONE
    python_entries = 0
    clears = 0

    def __init__(self, keys: Iterator[int], caches: ShardingCaches) -> None:
        self.key = next(keys)  # the system gives the number of a dead thread to a new one
        self._caches = caches
        self._lap = self._other_calls = 0
        # Hits and misses of the native cache: before the step, and when they were last read.
        self._before = self._stats = (0, 0)

    def begin(self, lap: int) -> None:
        """Begin a step in the thread that runs it."""
        self._stats = self._caches.native_stats()
        self._enter(lap)

    def native(self) -> tuple[int, int]:
        """Hits and misses of the native cache in this step, those before it was cleared among them."""
        hits, misses = self._caches.native_stats()
        return hits - self._before[0], misses - self._before[1]

    def note_call(self, lap: int) -> CallPosition:
        """Note a call that was no hit of the native cache; return where it was made."""
        self._enter(lap)
        self._other_calls += 1
        return self.last_call(lap)

    def last_call(self, lap: int) -> CallPosition:
        """Return where the latest call was made."""
        self._enter(lap)
        self._stats = self._caches.native_stats()
        return CallPosition(self.key, self._stats[0] - self._before[0] + self._other_calls - 1, self.clears)

    def cleared(self) -> None:
        """Note that the native cache is about to be cleared, and what it counts with it."""
        hits, misses = self.native()
        self._before, self._stats = (-hits, -misses), (0, 0)
        self.clears += 1

    def _enter(self, lap: int) -> None:
        if lap != self._lap:
            self._lap, self._other_calls, self._before = lap, 0, self._stats


SPECS, DTENSORS = "sharding specs", "DTensors"


def live_objects() -> Counter[str]:
    """Count them up to a constant, garbage among them: each holds a reference to its class."""
    return Counter({SPECS: sys.getrefcount(spec_type()), DTENSORS: sys.getrefcount(DTensor)})


class NewObjects(NamedTuple):
    """Objects that are alive and came since what existed was frozen.

    Args:
        specs: their number.
        tensors: DTensors by what those of one origin have in common, and by description.
    """

    specs: int
    tensors: Counter[tuple[str, str]]


def new_objects() -> NewObjects:
    """Count new objects, garbage among them."""
    new = gc.get_objects()
    tensors = Counter(ask_tensor(_kind, value, ("", "")) for value in new if type(value) is DTensor)
    return NewObjects(sum(type(value) is spec_type() for value in new), tensors)


MOST_KINDS = 3


def growing_tensors(before: NewObjects, now: NewObjects) -> str:
    """Describe the DTensors of which there are more than before, those with the greatest growth first.

    Those that differ in extents alone are compared together: a cache whose length grows is replaced.
    """
    grown, by_origin = Counter(now.tensors), Counter[str]()
    grown.subtract(before.tensors)
    for (origin, _), count in grown.items():
        by_origin[origin] += count
    return ", ".join(
        max((count, text) for (of, text), count in grown.items() if of == origin)[1]
        for origin, more in by_origin.most_common(MOST_KINDS)
        if more > 0
    )


Function = Callable[..., Any]


class _Exchange(NamedTuple):
    """An exchange of shards between two dimensions: an all_to_all, for which torch gathers on a CPU mesh.

    Args:
        bytes: that an all_to_all handles on this rank.
        is_real: whether its collective moves data between processes.
        is_simulated: whether it runs on the CPU tensors of all ranks, where torch does not gather.
    """

    bytes: int
    is_real: bool
    is_simulated: bool

    def as_counted(self, ran: Collective) -> Collective:
        """Return the collective of a GPU mesh; between real processes the one that ran."""
        is_gathered = ran.kind == "all_gather"
        if self.is_real:
            return replace(ran, elsewhere="all_to_all on a GPU") if is_gathered else ran
        fallback = "all_gather on a CPU mesh" if is_gathered or self.is_simulated else ""
        return replace(ran, kind="all_to_all", bytes=self.bytes, elsewhere=fallback)


class _Running(threading.local):
    """What runs in a thread."""

    implied_by = ""
    operands = 0  # of that op
    redistributed: Any = None  # the DTensor whose redistribution is explicit
    has_gradient = False  # whether autograd records that
    collective_bytes = 0
    is_in_collective = False
    exchange: _Exchange | None = None
    place: CodePlace | None = None  # of the redistribution that runs
    converting = ""  # name of the conversion that runs
    is_observed = False  # whether torch called the next redistribution implicit


class TransferWatch:
    """List what is told of; each method is given a function of torch, and calls it.

    Args:
        here: says where in the program the calling thread is.
        log: the list.

    """

    def __init__(self, here: Callable[[], CodePlace], log: list[Any]) -> None:
        self._here = here
        self._log = log
        self._running = _Running()
        self._numbers = TensorNumbers()

    def on_implied(self, redistribute: Function, info: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the op whose arguments are redistributed, and how many tensors it takes."""
        leaves = leaves_of(schema.args_schema, schema.kwargs_schema)
        operands = sum(isinstance(leaf, spec_type()) for leaf in leaves)
        with patch.multiple(self._running, implied_by=op_name(schema.op), operands=operands):
            return redistribute(info, schema, *args, **kwargs)

    def on_redistribution(self, redistribute: Function, *args: Any, **kwargs: Any) -> Any:
        """List a redistribution that changes placements, with the bytes that its collectives handle."""
        local, source, target, *_ = args
        is_observed, self._running.is_observed = self._running.is_observed, False
        if tuple(source.placements) == tuple(target.placements):
            return redistribute(*args, **kwargs)
        running, place = self._running, self._here()
        number = 0
        if running.redistributed is not None:
            version = version_of(running.redistributed)
            number = self._numbers.of_contents(local, version, running.has_gradient)
        elif running.implied_by:
            number = self._numbers.of_contents(local)
        placements = _placements(source), _placements(target)
        with (
            patch.multiple(running, collective_bytes=0, place=place),
            ProfilerRange("redistribution", lambda: change_text(*placements)),
        ):
            result = redistribute(*args, **kwargs)
            handled = running.collective_bytes
        op = running.implied_by or (is_observed and running.converting) or EXPLICIT
        numbers = number, self._numbers.of_contents(result, 0, running.has_gradient)
        tensor = _tensor_text(source)
        operands = running.operands
        self._log.append(Redistribution(op, tensor, *placements, handled, *numbers, operands, place=place))
        return result

    def on_collective(self, kind: str, collective: Function, *args: Any, **kwargs: Any) -> Any:
        """List a collective; one that runs inside another, by which that one is made, is part of it."""
        if self._running.is_in_collective:
            return collective(*args, **kwargs)
        place = self._running.place or self._here()
        with patch.object(self._running, "is_in_collective", True), ProfilerRange("collective", lambda: kind):
            result = collective(*args, **kwargs)
        ran = Collective(kind, max(map(_bytes, (*args, *kwargs.values(), result))), place=place)
        exchange = self._running.exchange
        counted = exchange.as_counted(ran) if exchange else ran
        self._log.append(counted)
        self._running.collective_bytes += counted.bytes
        return result

    def on_observation(self, observe: Function, *args: Any, **kwargs: Any) -> None:
        """Note that the next redistribution is implicit, by an op or in the backward of a conversion."""
        observe(*args, **kwargs)
        self._running.is_observed = True

    def on_exchange(self, exchange: Function, shard: Any, *args: Any, **kwargs: Any) -> Any:
        """Note that the next collective exchanges shards."""
        is_simulated = is_local_mode_open()
        noted = _Exchange(
            _bytes(shard),
            is_real=not is_simulated and not is_group_fake(),
            is_simulated=is_simulated and shard.device.type == "cpu",
        )
        with patch.object(self._running, "exchange", noted):
            return exchange(shard, *args, **kwargs)

    def on_conversion(self, converter: Converter, convert: Function, *args: Any, **kwargs: Any) -> Any:
        """List a wrap or an unwrap; one that runs inside another is part of it."""
        __tracebackhide__ = True
        # Of a function of autograd, which has edges only where a gradient will come back.
        has_gradient = bool(getattr(args[0], "next_functions", ()))
        if converter.kind is Conversion.REDISTRIBUTE:
            asked = None if converter.is_backward else first_tensor(args)
            with patch.multiple(self._running, redistributed=asked, has_gradient=has_gradient):
                return convert(*args, **kwargs)
        if self._running.converting:
            return convert(*args, **kwargs)
        taken = first_tensor(args)
        is_known = taken is not None and not converter.is_backward
        number = self._number(converter, taken, has_gradient) if is_known else 0
        converting = patch.object(self._running, "converting", converter.name)
        with converting, ProfilerRange(converter.kind, lambda: converter.name):
            result = convert(*args, **kwargs)
        made = result if isinstance(result, tuple) else (result,)
        tensors = args if converter.kind is Conversion.UNWRAP else made
        # In backward there may be no DTensor.
        wrapped = next((tensor for tensor in tensors if isinstance(tensor, DTensor)), None)
        if wrapped is not None:
            event = Wrapping if converter.kind is Conversion.WRAP else Unwrapping
            text, placements = _tensor_text(wrapped), _placements(wrapped)
            is_parameter, place = isinstance(taken, torch.nn.Parameter), self._here()
            self._log.append(event(converter.name, text, placements, number, is_parameter, place=place))
        return result

    def _number(self, converter: Converter, taken: Any, has_gradient: bool) -> int:
        """Return the number of a converted tensor.

        The result shares its memory, so a write changes nothing, unless it gives the tensor another graph. A
        result without a gradient does not replace one with a gradient.
        """
        if converter.name == "distribute_tensor":
            return self._numbers.of_contents(taken)
        local = local_of(taken)
        written = (version_of(local),) if has_graph(taken) else ()
        return self._numbers.of_memory(local, has_gradient, *written)


def first_tensor(values: Sequence[Any]) -> torch.Tensor | None:
    """Find the tensor that a conversion is of, behind what autograd gives its functions."""
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _placements(tensor: Any) -> tuple[str, ...]:
    return tuple(map(placement_text, tensor.placements))


def _kind(tensor: Any) -> tuple[str, str]:
    """Return what DTensors of one origin have in common, and the description of one."""
    dims, placements = len(tensor.shape), " ".join(_placements(tensor))
    return f"{dtype_text(tensor.dtype)} {dims} {placements}", f"{_tensor_text(tensor)} {placements}"


def _tensor_text(tensor: Any) -> str:
    """Write dtype and global shape of a tensor, or of the spec that stands for it."""
    traits = tensor_traits(tensor)
    return f"{dtype_text(traits.dtype)}{shape_text(traits.shape)}" if traits else ""


def _bytes(argument: Any) -> int:
    """Bytes of the tensors of an argument, on the first rank where all are simulated."""
    if is_tensor(argument):
        tensor = shards_of_simulated_ranks(argument)[0]
        return ask_tensor(lambda each: int(each.numel() * each.element_size()), tensor, 0)
    return sum(map(_bytes, argument)) if isinstance(argument, (list, tuple)) else 0


# Python 3.12 puts its immortal objects, some 400, beside what is frozen; who freezes has thousands.
LEAST_FROZEN = 1_000


# Arguments of ops that are sizes, or become one: padding keeps them equal.
SIZES = {"size", "end", "length", "repeats", "split_size", "split_sizes", "pad"}


class _Propagated(NamedTuple):
    """A call that propagated."""

    schema: Any  # holds specs: it must not outlive the lap, at whose end live specs are counted
    queried: QueriedCache
    error: str
    at: CallPosition
    place: CodePlace
    is_direct: bool


class StepCounter:
    """Count hits, propagations, redistributions, collectives and growth, from one lap to the next.

    Use it as a context manager, in one thread. Nothing is cleared, nothing repeated, and a hit of the
    native cache costs what it costs uncounted.

    Args:
        base: the function that calls the step; its line is no place in the program.
    """

    what = "steps are counted"
    lists_calls = True

    def __init__(self, base: Function | None = None) -> None:
        self._caches = ShardingCaches()
        self._seen = Seen()
        self._lap = 0
        self._thread = ThreadState(itertools.count(), self._caches)
        self._home = self._thread.key
        self._places = PlaceFinder(base)
        self._log: list[Called | _Propagated | AnyEvent] = []
        self._transfers = TransferWatch(self._places.here, self._log)
        self._open = ExitStack()
        self._notes: CallNotes | None = None
        self._begin()

    def __enter__(self) -> StepCounter:
        with ExitStack() as entered:
            self._put_in(entered.enter_context(MeasurementLock(self.what)).contexts)
            self._open = entered.pop_all()
        self._entries = self._caches.entries()
        self._live, self._new = live_objects(), new_objects()
        self._begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def _put_in(self, stack: ExitStack) -> None:
        """Put everything in place that counting needs."""
        stack.callback(self.end_notes)
        if gc.get_freeze_count() < LEAST_FROZEN:  # what the program froze itself stays frozen
            gc.freeze()  # what exists already is not collected, so that collecting what is new takes no time
            stack.callback(gc.unfreeze)
        for hooks in (self._places, observe_ops(self), observe_transfers(self._transfers)):
            stack.enter_context(hooks)

    def note(self, call: OpCall) -> Any:
        """Make a call, and note it with its place, so that later misses and backwards know it."""
        place = self._places.note()
        result = call.run()
        if has_dtensor(call.leaves()):
            at = self._thread.last_call(self._lap)
            called = describe(call.func, call.args, call.kwargs, at)
            if self.lists_calls:
                signature = str(signature_of(call.func, call.args, call.kwargs))
                called = called._replace(text=(signature, str(place)))
            self._log.append(called)
        return result

    def begin_notes(self) -> None:
        """Note every op from now on; not below modes of the program, which may be closed before this is."""
        if not open_modes():
            self._notes = CallNotes(self)
            self._notes.__enter__()

    def end_notes(self) -> None:
        """Note no more ops. While a mode that the program opened since is open, ours is too."""
        if self._notes is None:
            return
        self._notes.is_on = False
        if open_modes()[-1:] == [self._notes]:
            self._notes.__exit__(None, None, None)
            self._notes = None

    def lap(self) -> StepCounts:
        """Return what was counted since the last lap, or since entry, and begin to count anew."""
        counts = self._counted()
        gc.collect()
        references, self._live = self._live, live_objects()
        before, self._new = self._new, new_objects()
        # A reference to a class need not be an object's, and a new object may replace a frozen one.
        specs = min(self._live[SPECS] - references[SPECS], self._new.specs - before.specs)
        tensors = self._new.tensors.total() - before.tensors.total()
        tensors = min(self._live[DTENSORS] - references[DTENSORS], tensors)
        counts = replace(self._with_entries(counts), spec_growth=specs, dtensor_growth=tensors)
        return replace(counts, kept=growing_tensors(before, self._new)) if tensors > 0 else counts

    def _with_entries(self, counts: StepCounts) -> StepCounts:
        """Add what caches gained, and begin to count anew."""
        before, self._entries = self._entries, self._caches.entries()
        self._begin()
        gained = ((name, count - before[name]) for name, count in self._entries.items())
        return replace(counts, cache_growth=(*counts.cache_growth, *gained))

    def _counted(self) -> StepCounts:
        """Return what was counted in this lap, less growth; what it was read from is not held any more."""
        native_hits, native_misses = self._thread.native()
        propagated = [entry for entry in self._log if isinstance(entry, _Propagated)]
        self._check(native_misses, propagated)
        native_entries = sum(one.queried is QueriedCache.NATIVE and not one.error for one in propagated)
        events = tuple(self._explained())
        called = call_lines(entry.text for entry in self._log if isinstance(entry, Called))
        self._log.clear()
        return StepCounts(
            hits=native_hits + self._python_hits,
            unpropagated=self._unpropagated,
            events=events,
            called=called,
            cache_growth=(("native", native_entries),) if self._caches.has_native else (),
        )

    def _begin(self) -> None:
        self._lap += 1
        self._thread.begin(self._lap)
        self._places.begin_step()
        self._log.clear()
        self._python_hits = self._unpropagated = 0

    # What a watcher is told of: each method is given a function of torch, and calls it.

    def on_native_miss(self, slow_path: Function, *args: Any) -> Any:
        """Note which cache was asked; what propagates is told of inside."""
        with patch.object(self._thread, "queried", QueriedCache.NATIVE):
            return slow_path(*args)

    def on_propagation(self, propagate: Function, schema: Any) -> Any:
        """Count a propagation for which the Python cache was not asked."""
        return self._asking(propagate, schema, self._thread.queried, lambda: True)

    def on_python_cache(self, cache: Any, schema: Any) -> Any:
        """Count a hit or a miss of the Python cache."""
        info = cache.cache.cache_info
        before = info()
        if before.currsize < self._thread.python_entries:
            self._thread.clears += 1
        try:
            return self._asking(cache, schema, QueriedCache.PYTHON, lambda: info().misses > before.misses)
        finally:
            self._thread.python_entries = info().currsize

    def on_tensor_meta(self, infer: Function, schema: Any) -> Any:
        """Show a profiler that an op propagates: as the Python cache is asked, that is not known yet."""
        if self._thread.depth == 1:
            self._thread.outermost.show()
        return infer(schema)

    def on_custom_handler(self, handler: Function, *args: Any, **kwargs: Any) -> Any:
        """Count an op whose handler asks no cache."""
        before = self._thread.last_call(self._lap)
        result = handler(*args, **kwargs)
        if self._thread.last_call(self._lap) == before:
            self._unpropagated += 1
            self._thread.note_call(self._lap)
        return result

    def on_native_clear(self, clear: Function) -> None:
        """Keep what the counters show, which go with the cache."""
        self._thread.cleared()
        clear()

    def _asking(
        self, ask: Function, schema: Any, queried: QueriedCache, has_propagated: Callable[[], bool]
    ) -> Any:
        thread, error = self._thread, ""
        profiled = ProfilerRange("miss", partial(_signature_text, schema))
        if not thread.depth:
            thread.outermost = profiled
        thread.depth += 1
        try:
            return ask(schema)
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            thread.depth -= 1
            profiled.end()
            if not thread.depth:
                thread.outermost = None  # it holds specs
                at = thread.note_call(self._lap)
                if has_propagated():
                    place, is_direct = self._places.here(), self._places.is_called_directly()
                    self._log.append(_Propagated(schema, queried, error, at, place, is_direct))
                else:
                    self._python_hits += 1

    def _check(self, native_misses: int, propagated: Sequence[_Propagated]) -> None:
        """Compare what was seen with torch's own counter, which belongs to this thread."""
        seen = sum(one.queried is QueriedCache.NATIVE and one.at.thread == self._home for one in propagated)
        if seen != native_misses:
            warn(
                f"misses of the native cache: {seen} were seen, and torch counts {native_misses}: "
                "something cleared the caches unseen, or propagates unseen",
                stacklevel=3,
            )

    def _explained(self) -> Iterator[AnyEvent]:
        """Give what happened, in order, with the reason of each miss."""
        for entry in self._log:
            if isinstance(entry, _Propagated):
                schema = entry.schema
                called = describe(schema.op, schema.args_schema, schema.kwargs_schema, entry.at)
                yield self._miss(entry, called)
                self._seen.note(called)
            elif isinstance(entry, Called):
                self._seen.note(entry)
            else:
                yield entry

    def _miss(self, one: _Propagated, called: Called) -> Miss:
        if one.error:
            reason = Reason(f"propagation raised {one.error}, and that is not kept", remedy=Remedy.UNCACHED)
        elif one.queried is QueriedCache.NONE:
            reason = Reason("no cache was asked: the program is traced, or a mode bypasses the caches")
        else:
            reason = self._seen.why(called)
        return Miss(
            signature=_signature_text(one.schema),
            reason=reason.text,
            queried=one.queried,
            cause=reason.without_values or reason.text,
            call=one.at.call,
            elsewhere=one.at.thread != self._home,
            remedy=_remedy(one.schema.op, reason),
            values=reason.values,
            is_direct=one.is_direct,
            place=one.place,
        )


def _remedy(op: Any, reason: Reason) -> Remedy:
    """Return what avoids a miss; of a value that differs, by the schema of the op."""
    names = [name.partition("[")[0] for name in reason.arguments]
    if reason.remedy is not Remedy.NUMBER or all(takes_tensor(op, name) for name in names):
        return reason.remedy
    return Remedy.SHAPE if SIZES.issuperset(names) else Remedy.NONE


def _signature_text(schema: Any) -> str:
    return str(signature_of(schema.op, schema.args_schema, schema.kwargs_schema))


class CallNotes(UnnoticedMode):
    """Note every DTensor op, so that it is known what later misses have that these calls had not.

    Where it cannot be taken out, as it is not innermost, it is switched off.
    """

    def __init__(self, counter: StepCounter) -> None:
        super().__init__()
        self.is_on = True
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        if not self.is_on:
            return func(*args, **kwargs or {})
        return self._counter.note(OpCall(func, args, kwargs or {}))


MOST_NOTED = 20_000  # calls and what they move, in one step


class LoopCounter(StepCounter):
    """Count misses and cache entries of every step, and transfers of those steps that are looked at.

    No garbage is collected: of live objects each lap has no growth. What a lap tells of redistributions,
    collectives, wraps and unwraps is empty where the step was not looked at.
    """

    what = "a StepWatch is open"
    lists_calls = False

    def __init__(self) -> None:
        super().__init__()
        self._look = ExitStack()
        self.records_transfers = False

    def _put_in(self, stack: ExitStack) -> None:
        stack.enter_context(self._places)
        stack.enter_context(observe_ops(self))
        stack.callback(self.skip_transfers)
        stack.callback(self.end_notes)

    def lap(self) -> StepCounts:
        """Return what was counted since the last lap, or since entry, and begin to count anew."""
        return self._with_entries(self._counted())

    def quiet_lap(self) -> int | None:
        """Begin to count anew where there were hits alone, and return how many calls; else do nothing.

        It is what most steps are: a watch must not cost what they take.
        """
        hits, misses = self._thread.native()
        if (
            self._log
            or self.records_transfers
            or misses
            or hits < 0
            or self._caches.entries() != self._entries
        ):
            return None
        calls = hits + self._python_hits + self._unpropagated
        self._begin()
        return calls

    def note(self, call: OpCall) -> Any:
        """Make a call and note it: not for ever, where a program ends no step."""
        if len(self._log) >= MOST_NOTED:
            self.skip_transfers()
            self.end_notes()
        return super().note(call)

    def noted_ops(self) -> Counter[str]:
        """Count the calls of each op in this lap, as far as every op is noted."""
        return Counter(entry.op for entry in self._log if isinstance(entry, Called))

    def record_transfers(self) -> None:
        """Look at transfers from now on."""
        self._look.enter_context(observe_transfers(self._transfers))
        self.records_transfers = True

    def skip_transfers(self) -> None:
        """Look at transfers no more."""
        self.records_transfers = False
        self._look.close()
