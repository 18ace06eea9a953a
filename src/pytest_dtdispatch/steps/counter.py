"""Count what the dispatcher does, without clearing, repeating or slowing down anything."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import DtDispatchWarning
from pytest_dtdispatch.measuring.op_call import dtype_text, placement_text, shape_text, signature_of
from pytest_dtdispatch.measuring.preconditions import Measuring
from pytest_dtdispatch.steps.model import Asked, Miss, Redistribution, StepCounts
from pytest_dtdispatch.steps.reasons import Called, Describer, Reason, Seen
from pytest_dtdispatch.steps.threads import CallPlace, ThreadState
from pytest_dtdispatch.torchapi.dispatcher import watching
from pytest_dtdispatch.torchapi.ops import op_name, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import shards_of_simulated_ranks, spec_type, tensor_traits

STATM = Path("/proc/self/statm")
Function = Callable[..., Any]


class _Propagated(NamedTuple):
    """A call that propagated."""

    schema: Any  # holds specs: it must not outlive the lap, at whose end live specs are counted
    asked: Asked
    nested: int
    error: str
    at: CallPlace


class Held(NamedTuple):
    """What there is at one moment; objects up to a constant: each holds a reference to its class."""

    entries: dict[str, int]
    specs: int
    dtensors: int
    host_memory_bytes: int | None

    @classmethod
    def by(cls, caches: ShardingCaches) -> Held:
        """Look what there is."""
        return cls(caches.entries(), sys.getrefcount(spec_type()), sys.getrefcount(DTensor), resident_bytes())

    def memory_since(self, earlier: Held) -> int | None:
        """Say how many bytes of resident memory were gained; None where the system does not tell."""
        now, before = self.host_memory_bytes, earlier.host_memory_bytes
        return None if now is None or before is None else now - before


class StepCounter:
    """Count hits, propagations, redistributions, collectives and growth, from one lap to the next.

    Use it as a context manager, in one thread. Nothing is cleared, nothing repeated, and a hit of the
    native cache costs what it costs uncounted.
    """

    def __init__(self) -> None:
        self._caches = ShardingCaches()
        self._describer = Describer()
        self._seen = Seen()
        self._lap = 0
        self._thread = ThreadState(itertools.count(), self._caches)
        self._home = self._thread.key
        self._open = ExitStack()
        self._begin()

    def __enter__(self) -> StepCounter:
        with ExitStack() as entered:
            measuring = entered.enter_context(Measuring("steps are counted"))
            gc.freeze()  # what exists already is not collected, so that collecting what is new takes no time
            measuring.held.callback(gc.unfreeze)
            measuring.held.enter_context(watching(self))
            self._open = entered.pop_all()
        self._held = Held.by(self._caches)
        self._begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def note_call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a call that was made, so that it is known what a later miss has that no call had before."""
        self._log.append(self._describer.called(func, args, kwargs, self._thread.last_call(self._lap)))

    def lap(self) -> StepCounts:
        """Return what was counted since the last lap, or since entry, and begin to count anew."""
        native_hits, native_misses = self._native_since()
        propagated = [entry for entry in self._log if isinstance(entry, _Propagated)]
        self._check(native_misses, propagated)
        missed = self._explained()
        native_entries = sum(one.asked is Asked.NATIVE and not one.error for one in propagated)
        propagated.clear()
        self._log.clear()
        gc.collect()
        held, before = Held.by(self._caches), self._held
        grown = {name: count - before.entries[name] for name, count in held.entries.items()}
        native = (("native", native_entries),) if self._caches.has_native else ()
        counts = StepCounts(
            hits=native_hits + self._python_hits,
            missed=missed,
            unpropagated=self._unpropagated,
            native_misses=native_misses,
            python_misses=self._python_misses,
            redistributions=tuple(self._redistributions),
            collectives=tuple(sorted(self._collectives.items())),
            cache_growth=(*native, *grown.items()),
            spec_growth=held.specs - before.specs,
            dtensor_growth=held.dtensors - before.dtensors,
            host_memory_growth_bytes=held.memory_since(before),
        )
        self._held = held
        self._begin()
        return counts

    def _begin(self) -> None:
        self._lap += 1
        self._thread.begin(self._lap)
        self._log: list[Called | _Propagated] = []
        self._python_hits = 0
        self._python_misses = 0
        self._unpropagated = 0
        self._redistributions: list[Redistribution] = []
        self._collectives: Counter[str] = Counter()
        self._native_before_clear = (0, 0)
        self._native = self._caches.native_stats()

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

    def on_implied(self, redistribute: Function, info: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the op whose arguments are redistributed."""
        with patch.object(self._thread, "implied_by", op_name(schema.op)):
            return redistribute(info, schema, *args, **kwargs)

    def on_redistribution(self, redistribute: Function, *args: Any, **kwargs: Any) -> Any:
        """Count a redistribution that changes placements, with the bytes that its collectives handle."""
        _, source, target, *_ = args
        outer, self._thread.collective_bytes = self._thread.collective_bytes, 0
        result = redistribute(*args, **kwargs)
        handled, self._thread.collective_bytes = self._thread.collective_bytes, outer
        if tuple(source.placements) != tuple(target.placements):
            self._redistributions.append(self._redistribution(source, target, handled))
        return result

    def on_collective(self, kind: str, collective: Function, *args: Any, **kwargs: Any) -> Any:
        """Count a collective; one that runs inside another, by which that one is made, is part of it."""
        if self._thread.is_in_collective:
            return collective(*args, **kwargs)
        self._collectives[kind] += 1
        with patch.object(self._thread, "is_in_collective", True):
            result = collective(*args, **kwargs)
        self._thread.collective_bytes += max(map(_bytes, (*args, *kwargs.values(), result)))
        return result

    def _asking(self, ask: Function, schema: Any, asked: Asked, has_propagated: Callable[[], bool]) -> Any:
        thread, error = self._thread, ""
        thread.depth += 1
        try:
            return ask(schema)
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            thread.depth -= 1
            if has_propagated():
                self._python_misses += asked is Asked.PYTHON
                self._note_propagation(schema, asked, error)
            elif not thread.depth:
                self._python_hits += 1
                thread.tell(self._lap)

    def _note_propagation(self, schema: Any, asked: Asked, error: str) -> None:
        thread = self._thread
        if thread.depth:
            thread.nested += 1
            return
        nested, thread.nested = thread.nested, 0
        self._log.append(_Propagated(schema, asked, nested, error, thread.tell(self._lap)))

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
        where = one.at.call, one.at.thread != self._home
        return Miss(
            str(signature_of(*call)), reason.text, one.asked, one.nested, reason.cause, *where
        ), called

    def _redistribution(self, source: Any, target: Any, handled: int) -> Redistribution:
        tensor = tensor_traits(source)
        return Redistribution(
            op=self._thread.implied_by or "redistribute",
            tensor=f"{dtype_text(tensor.dtype)}{shape_text(tensor.shape)}" if tensor else "",
            source=tuple(map(placement_text, source.placements)),
            target=tuple(map(placement_text, target.placements)),
            bytes=handled,
        )


def _bytes(argument: Any) -> int:
    """Bytes of the tensors of an argument, on the first rank where all are simulated."""
    leaves = [leaf for leaf in tree_leaves(argument) if isinstance(leaf, torch.Tensor)]
    tensors = [shards_of_simulated_ranks(leaf)[0] for leaf in leaves]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def resident_bytes() -> int | None:
    """Read the resident memory of this process; None where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
