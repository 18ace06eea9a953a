"""DTensor's sharding propagator: its caches, and the caches that it uses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, _collective_utils, _redistribute
from torch.distributed.tensor._ops import _embedding_ops

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.observe import SLOW_PATH, before, follow


@dataclass(frozen=True)
class NamedCache:
    """A cache of torch that can be cleared and counted."""

    name: str
    clear: Callable[[], Any]
    size: Callable[[], int]


class ShardingCaches:
    """Sharding-propagation caches of the current thread.

    Both caches are per thread: clear and read them in the thread that runs the op.
    """

    def __init__(self) -> None:
        propagator = follow(DTensor, "_op_dispatcher.sharding_propagator")
        # Its `cache` is this thread's `lru_cache`.
        self._python = follow(propagator, "propagate_op_sharding")
        for name in ("cache_clear", "cache_info"):
            if follow(self._python, f"cache.{name}") is None:
                path = "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding"
                raise _unsupported(f"{path}.cache.{name}")
        self._native_clear, self._native_stats = _native_cache()
        # Old dispatchers query this cache on a miss.
        names = ("_propagate_tensor_meta_cached", "_propagate_tensor_meta")
        caches = (_lru_cache("tensor meta", type(propagator), name) for name in names)
        meta = next(filter(None, caches), None)
        # Redistribution plans store placements of sharding plans, and are cleared with them if masked partial
        # placements with different masks compare equal.
        masked = getattr(_embedding_ops, "_MaskPartial", None) or getattr(_embedding_ops, "MaskPartial", None)
        plans = _transform_plans() if masked is not None and masked() == masked() else None
        self._others = [cache.clear for cache in (meta, plans) if cache]
        self._cold = cold_caches()
        self._sized = (meta, *self._cold) if meta else self._cold

    @property
    def interface(self) -> str:
        """Caches that this torch has: ``native+python`` or ``python``."""
        return "native+python" if self.has_native else "python"

    def clear(self) -> None:
        """Clear the sharding-propagation caches of this thread, and the tensor-meta cache."""
        # Both are needed: since torch 2.10, most ops bypass the Python cache, but some do not.
        self._python.cache.cache_clear()
        if self._native_clear:
            self._native_clear()
        for clear in self._others:
            clear()

    def clear_cold(self) -> None:
        """Clear the caches that propagation uses, which are shared by all threads."""
        for cache in self._cold:
            cache.clear()

    def clear_all(self) -> None:
        """Clear all caches; required whenever a process group is created or destroyed."""
        self.clear()
        self.clear_cold()

    def cold_entries(self) -> int:
        """Count the entries of the caches that propagation uses."""
        return sum(cache.size() for cache in self._cold)

    @property
    def has_native(self) -> bool:
        """Whether this torch has a native cache."""
        return self._native_stats is not None

    def native_stats(self) -> tuple[int, int]:
        """Return hits and misses of this thread's native cache; zeros if torch has none."""
        return self._native_stats() if self._native_stats else (0, 0)

    def entries(self) -> dict[str, int]:
        """Return the number of entries of all caches that expose it: all but the native one."""
        entries = {cache.name: cache.size() for cache in self._sized}
        entries["python"] = self._python.cache.cache_info().currsize
        return entries

    def readers(self) -> tuple[Callable[[], Sequence[Any]], ...]:
        """Return readers of this thread's counters, in the order in which caches are queried."""
        python = self._python.cache.cache_info
        return (self._native_stats, python) if self._native_stats else (python,)

    @contextmanager
    def counting_uncached(self) -> Iterator[list[int]]:
        """Count this thread's calls of the uncached propagation, in the only element of the list.

        Tracing and some modes propagate on every call without querying a cache, which no counter shows. The
        propagator's own cache calls the method that was bound at its creation, which is not patched.
        """
        count = [0]

        def add(schema: Any) -> None:
            count[0] += 1

        with before("propagation", add):
            yield count


def _native_cache() -> tuple[Callable[[], None] | None, Callable[[], tuple[int, int]] | None]:
    """Return the functions that clear the native cache, and read its hits and misses."""
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    stats = getattr(torch._C, "_get_DTensor_sharding_propagator_cache_stats", None)
    if (clear is None) != (stats is None):
        have, lack = ("clear", "stats") if stats is None else ("stats", "clear")
        raise _unsupported(
            f"the native sharding-propagation cache's {lack} function beside its {have} function"
        )
    if clear is None and follow(DTensor, f"_op_dispatcher.{SLOW_PATH}") is not None:
        # Without them, the cache works, but no op would seem to propagate.
        raise _unsupported(f"functions that clear and count the native cache, but calls {SLOW_PATH}")
    return clear, stats


def _transform_plans() -> NamedCache | None:
    return _lru_cache("transform plans", _redistribute, "_gen_transform_infos")


def _lru_cache(name: str, owner: Any, path: str) -> NamedCache | None:
    cache = follow(owner, path)
    if follow(cache, "cache_clear") is None:
        return None

    def size() -> int:
        return int(cache.cache_info().currsize)

    return NamedCache(name, cache.cache_clear, size)


def cold_caches() -> tuple[NamedCache, ...]:
    """Return the caches that propagation uses: FakeTensor results, redistribution plans, mesh topology."""
    found = [
        NamedCache("FakeTensor", FakeTensorMode.cache_clear, partial(len, FakeTensorMode.cache)),
        _lru_cache("mesh topology", _collective_utils, "MeshTopoInfo.build_from_mesh"),
    ]
    return tuple(cache for cache in (*found, *plan_caches()) if cache)


def plan_caches() -> tuple[NamedCache, ...]:
    """Return the caches of redistribution: plans, and the planners that create them."""
    found = [_transform_plans()]
    planner_clear = follow(_redistribute, "clear_redistribute_planner_cache")
    planners = follow(_redistribute, "_planner_cache")
    if planner_clear is not None and planners is not None:
        found.append(NamedCache("redistribution planners", planner_clear, partial(len, planners)))
    return tuple(cache for cache in found if cache)


def dispatch_loggers() -> Sequence[logging.Logger]:
    """Return the loggers whose DEBUG level slows down the dispatcher."""
    return [logging.getLogger(f"torch.distributed.tensor.{name}") for name in ("_dispatch", "_sharding_prop")]


def _unsupported(missing: str) -> UnsupportedTorchError:
    return UnsupportedTorchError(
        f"torch {torch.__version__} cannot be measured: it lacks {missing}; torch 2.5 to 2.15 have it"
    )


class PlanCaches(ShardingCaches):
    """Caches of redistribution plans, and of the planners that create them, shared by all threads.

    A redistribution queries only the cache of plans. On a miss, a planner creates the plan; newer versions of
    torch also cache planners.
    """

    def __init__(self) -> None:
        super().__init__()
        self._plans = plan_caches()

    def clear(self) -> None:
        """Clear plans and planners."""
        for cache in self._plans:
            cache.clear()

    def readers(self) -> tuple[Callable[[], Sequence[Any]], ...]:
        """Return the reader of the plans' counters; an empty tuple if this torch does not count them."""
        info = follow(_redistribute, "_gen_transform_infos.cache_info")
        return (info,) if info else ()

    @contextmanager
    def counting_uncached(self) -> Iterator[list[int]]:
        """Yield 0: plans are never created without querying the cache, except while torch is tracing."""
        yield [0]
