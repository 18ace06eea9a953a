"""Count what the dispatcher does, without clearing, repeating or slowing down anything."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from pytest_dtdispatch.core.places import CodePlace
from pytest_dtdispatch.core.spans import Interval
from pytest_dtdispatch.errors import DtDispatchWarning
from pytest_dtdispatch.measuring.call import signature_of
from pytest_dtdispatch.measuring.guard import Measuring
from pytest_dtdispatch.measuring.places import PlaceFinder
from pytest_dtdispatch.steps.happened import Asked, Miss
from pytest_dtdispatch.steps.held import Held, gained
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.steps.reasons import Called, Describer, Reason, Seen
from pytest_dtdispatch.steps.threads import CallPlace, ThreadState
from pytest_dtdispatch.steps.transfers import TransferWatch
from pytest_dtdispatch.torchapi.hooks import Conversion, watching_ops, watching_transfers
from pytest_dtdispatch.torchapi.profiling import Timed
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

Function = Callable[..., Any]
# Python 3.12 puts its immortal objects, some 400, beside what is frozen; who freezes has thousands.
LEAST_FROZEN = 1_000


class _Propagated(NamedTuple):
    """A call that propagated."""

    schema: Any  # holds specs: it must not outlive the lap, at whose end live specs are counted
    asked: Asked
    nested: int
    error: str
    at: CallPlace
    place: CodePlace
    when: Interval


class StepCounter:
    """Count hits, propagations, redistributions, collectives and growth, from one lap to the next.

    Use it as a context manager, in one thread. Nothing is cleared, nothing repeated, and a hit of the
    native cache costs what it costs uncounted.

    Args:
        base: the function that calls the step; its line is no place in the program.
    """

    what = "steps are counted"

    def __init__(self, base: Function | None = None) -> None:
        self._caches = ShardingCaches()
        self._describer = Describer()
        self._seen = Seen()
        self._lap = 0
        self._thread = ThreadState(itertools.count(), self._caches)
        self._home = self._thread.key
        self._places = PlaceFinder(base)
        self._transfers = TransferWatch(self._places.here)
        self._open = ExitStack()
        self._begin()

    def __enter__(self) -> StepCounter:
        with ExitStack() as entered:
            measuring = entered.enter_context(Measuring(self.what))
            self._put_in(measuring.held)
            self._open = entered.pop_all()
        self._held = Held.by(self._caches)
        self._begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def _put_in(self, held: ExitStack) -> None:
        """Put everything in place that counting needs."""
        if gc.get_freeze_count() < LEAST_FROZEN:  # what the program froze itself stays frozen
            gc.freeze()  # what exists already is not collected, so that collecting what is new takes no time
            held.callback(gc.unfreeze)
        held.enter_context(self._places)
        held.enter_context(watching_ops(self))
        held.enter_context(watching_transfers(self._transfers))

    def note_place(self) -> None:
        """Note where an op is called, so that its place is known in the backward of later steps."""
        self._places.note()

    def note_call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a call that was made, so that it is known what a later miss has that no call had before."""
        self._log.append(self._describer.called(func, args, kwargs, self._thread.last_call(self._lap)))

    def lap(self) -> StepCounts:
        """Return what was counted since the last lap, or since entry, and begin to count anew."""
        counts = self._counted()
        gc.collect()
        held, before = Held.by(self._caches), self._held
        self._held = held
        self._begin()
        return replace(
            counts,
            cache_growth=(*counts.cache_growth, *gained(held.entries, before.entries)),
            spec_growth=held.specs - before.specs,
            dtensor_growth=held.dtensors - before.dtensors,
            host_memory_growth_bytes=held.memory_since(before),
        )

    def _counted(self) -> StepCounts:
        """Give what was counted in this lap, less growth; nothing that it was read from is held any more."""
        when = self._step.end()
        native_hits, native_misses = self._native_since()
        propagated = [entry for entry in self._log if isinstance(entry, _Propagated)]
        self._check(native_misses, propagated)
        missed, moved = self._explained(), self._transfers
        native_entries = sum(one.asked is Asked.NATIVE and not one.error for one in propagated)
        self._log.clear()
        return StepCounts(
            hits=native_hits + self._python_hits,
            missed=missed,
            unpropagated=self._unpropagated,
            native_misses=native_misses,
            python_misses=self._python_misses,
            redistributions=tuple(moved.redistributions),
            collectives=tuple(sorted(Counter(one.kind for one in moved.collectives).items())),
            collective_runs=tuple(moved.collectives),
            wraps=tuple(moved.converted[Conversion.WRAP]),
            unwraps=tuple(moved.converted[Conversion.UNWRAP]),
            cache_growth=(("native", native_entries),) if self._caches.has_native else (),
            when=when,
        )

    def _begin(self) -> None:
        self._lap += 1
        self._thread.begin(self._lap)
        self._places.begin_step()
        self._transfers.forget()
        self._log: list[Called | _Propagated] = []
        self._python_hits = 0
        self._python_misses = 0
        self._unpropagated = 0
        self._native_before_clear = (0, 0)
        self._native = self._caches.native_stats()
        self._step = Timed("step", lambda: str(self._lap))

    # What a watcher is told of: each method is given a function of torch, and calls it.

    def on_native_miss(self, slow_path: Function, *args: Any) -> Any:
        """Note which cache was asked; what propagates is told of inside."""
        with patch.object(self._thread, "asked", Asked.NATIVE):
            return slow_path(*args)

    def on_propagation(self, propagate: Function, schema: Any) -> Any:
        """Count a propagation for which the Python cache was not asked."""
        return self._asking(propagate, schema, self._thread.asked, lambda: True)

    def on_python_cache(self, cache: Any, schema: Any) -> Any:
        """Count a hit or a miss of the Python cache."""
        info = cache.cache.cache_info
        before = info()
        if before.currsize < self._thread.python_entries:
            self._thread.clears += 1
        try:
            return self._asking(cache, schema, Asked.PYTHON, lambda: info().misses > before.misses)
        finally:
            self._thread.python_entries = info().currsize

    def on_tensor_meta(self, infer: Function, schema: Any) -> Any:
        """Show a profiler that an op propagates: as the Python cache is asked, that is not known yet."""
        if self._thread.depth == 1:
            self._thread.asking.show()
        return infer(schema)

    def on_custom_handler(self, handler: Function, *args: Any, **kwargs: Any) -> Any:
        """Count an op whose handler asks no cache."""
        before = self._asked_so_far()
        result = handler(*args, **kwargs)
        if self._asked_so_far() == before:
            self._unpropagated += 1
            self._thread.tell(self._lap)
        return result

    def on_native_clear(self, clear: Function) -> None:
        """Keep what the counters show, which go with the cache."""
        if self._thread.key == self._home:
            self._native_before_clear = self._native_since()
            self._native = (0, 0)
        self._thread.cleared()
        clear()

    def _asking(self, ask: Function, schema: Any, asked: Asked, has_propagated: Callable[[], bool]) -> Any:
        thread, error = self._thread, ""
        timed = Timed("miss", partial(_signature_text, schema))
        if not thread.depth:
            thread.asking = timed
        thread.depth += 1
        try:
            return ask(schema)
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            thread.depth -= 1
            when = timed.end()
            if not thread.depth:
                thread.asking = None  # it holds specs
            if has_propagated():
                self._python_misses += asked is Asked.PYTHON
                self._note_propagation(schema, asked, error, when)
            elif not thread.depth:
                self._python_hits += 1
                thread.tell(self._lap)

    def _note_propagation(self, schema: Any, asked: Asked, error: str, when: Interval) -> None:
        thread = self._thread
        if thread.depth:
            thread.nested += 1
            return
        nested, thread.nested = thread.nested, 0
        at, place = thread.tell(self._lap), self._places.here()
        self._log.append(_Propagated(schema, asked, nested, error, at, place, when))

    def _asked_so_far(self) -> tuple[int, int, tuple[int, int]]:
        return len(self._log), self._python_hits, self._caches.native_stats()

    def _native_since(self) -> tuple[int, int]:
        """Hits and misses of the native cache in this lap, those before it was cleared among them."""
        hits, misses = self._caches.native_stats()
        hits_before_clear, misses_before_clear = self._native_before_clear
        return hits - self._native[0] + hits_before_clear, misses - self._native[1] + misses_before_clear

    def _check(self, native_misses: int, propagated: Sequence[_Propagated]) -> None:
        """Compare what was seen with torch's own counter, which belongs to this thread."""
        seen = sum(one.asked is Asked.NATIVE and one.at.thread == self._home for one in propagated)
        if seen != native_misses:
            warnings.warn(
                f"misses of the native cache: {seen} were seen, and torch counts {native_misses}: "
                "something cleared the caches unseen, or propagates unseen",
                DtDispatchWarning,
                stacklevel=3,
            )

    def _explained(self) -> tuple[Miss, ...]:
        missed = []
        for entry in self._log:
            if isinstance(entry, _Propagated):
                miss, entry = self._explain(entry)
                missed.append(miss)
            self._seen.note(entry)
        return tuple(missed)

    def _explain(self, one: _Propagated) -> tuple[Miss, Called]:
        call = one.schema.op, one.schema.args_schema, one.schema.kwargs_schema
        called = self._describer.called(*call, one.at)
        if one.error:
            reason = Reason(f"propagation raised {one.error}, and that is not kept")
        elif one.asked is Asked.NONE:
            reason = Reason(
                "no cache was asked: the program is being traced, or a mode makes torch pass them by"
            )
        else:
            reason = self._seen.why(called)
        where = one.at.call, one.at.thread != self._home, one.place, one.when
        return Miss(
            _signature_text(one.schema), reason.text, one.asked, one.nested, reason.cause, *where
        ), called


def _signature_text(schema: Any) -> str:
    return str(signature_of(schema.op, schema.args_schema, schema.kwargs_schema))
