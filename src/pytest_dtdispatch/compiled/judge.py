"""Judge what compiling did: limits on counts, and what the FakeTensor cache is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.metrics import listed
from pytest_dtdispatch.stats.rank_sums import hodges_lehmann, shift_interval

CONFIDENCE = 0.95  # five compiles each suffice for it
COMPARED = (State.COMPILE_COLD, State.COMPILE_WARM)


# The most that a compiled function may have.
_LIMITED: dict[str, Callable[[CompileCounts], Sequence[object] | None]] = {
    "max_recompiles": lambda counts: counts.recompiles,
    "max_graph_breaks": lambda counts: counts.graph_breaks,
}
LIMITS = tuple(_LIMITED)


def complaint(variant: CompiledVariant, limits: Mapping[str, Any]) -> str:
    """Say which limits a compiled function exceeds, or cannot be held against; empty where none."""
    against = list(_complaints(variant.counts, limits))
    return "\n".join([f"{variant.name}: over its limits", *against]) if against else ""


def _complaints(counts: CompileCounts, limits: Mapping[str, Any]) -> Iterator[str]:
    for limit, of in _LIMITED.items():
        allowed, found = limits.get(limit), of(counts)
        if allowed is not None and found is None:
            yield f"{limit}={allowed} cannot be judged: this torch does not count them"
        elif allowed is not None and found is not None and len(found) > allowed:
            yield f"{limit}={allowed}, and there are {len(found):,}"
            yield from listed(found)


@dataclass(frozen=True)
class CacheEffect:
    """How much longer a state takes with the FakeTensor cache off.

    Args:
        name: of the function.
        state: of the samples.
        ratio: without the cache over with it.
        low: lower end of its interval, with 95 %; 0 where there are too few samples for one.
        high: upper end; infinite where there are too few samples.
        samples: with the cache off, and with it on.
    """

    name: str
    state: State
    ratio: float
    low: float
    high: float
    samples: tuple[int, int]

    @property
    def has_interval(self) -> bool:
        """Whether there were samples enough for an interval."""
        return self.low > 0 and math.isfinite(self.high)


def cache_effects(variants: Sequence[CompiledVariant]) -> Iterator[CacheEffect]:
    """Compare functions that were compiled with the FakeTensor cache off and on, samples taken in turn.

    The ratio is that of Hodges and Lehmann: of logarithms, the median of all differences.
    """
    by_name: dict[str, dict[bool | None, CompiledVariant]] = {}
    for variant in variants:
        by_name.setdefault(variant.base_name, {})[variant.fake_tensor_cache] = variant
    for name, settings in by_name.items():
        if True not in settings or False not in settings:
            continue
        for state in COMPARED:
            off, on = (settings[is_on].measurement.of(state) for is_on in (False, True))
            if off and on:
                yield _effect(name, state, off.ns, on.ns)


def _effect(name: str, state: State, off: Sequence[int], on: Sequence[int]) -> CacheEffect:
    logs_off, logs_on = ([math.log(max(ns, 1)) for ns in each] for each in (off, on))
    low, high = shift_interval(logs_on, logs_off, CONFIDENCE)
    ratio = math.exp(hodges_lehmann(logs_on, logs_off))
    return CacheEffect(name, state, ratio, math.exp(low), math.exp(high), (len(off), len(on)))
