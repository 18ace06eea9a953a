"""The sharding propagator of DTensor: its caches, and the caches that feed it."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.shared_hook import SharedHook

MISSING = object()


@dataclass(frozen=True)
class NamedCache:
    """A cache of torch that is not part of a miss: how to empty it, and how many entries it has."""

    name: str
    clear: Callable[[], Any]
    size: Callable[[], int]


@dataclass(frozen=True)
class PropagatorApi:
    """What this torch has for clearing and counting sharding propagation.

    Args:
        python_cache: per-thread cache of the propagator; its ``cache`` is this thread's ``lru_cache``.
        native_clear: empties the cache of the native dispatcher, where torch has one.
        native_stats: hits and misses of that cache, this thread's.
        tensor_meta: the tensor-meta cache, which old dispatchers ask on a miss, where torch has one.
        transform_plans: plans of redistribution that hold placements of sharding plans, and must go with
            them: of a torch that takes one masked partial placement for another.
        propagator: the object whose uncached entry can be watched.
    """

    python_cache: Any
    native_clear: Callable[[], None] | None
    native_stats: Callable[[], tuple[int, int]] | None
    tensor_meta: NamedCache | None
    transform_plans: NamedCache | None
    propagator: Any

    @property
    def interface(self) -> str:
        """Name the caches that this torch has."""
        return "native+python" if self.native_clear else "python"


def propagator_api() -> PropagatorApi:
    """Find the sharding-propagation caches of this torch."""
    propagator = _follow(DTensor, "_op_dispatcher.sharding_propagator")
    python_cache = _follow(propagator, "propagate_op_sharding")
    for name in ("cache_clear", "cache_info"):
        if _follow(python_cache, f"cache.{name}") is MISSING:
            raise _unsupported(
                f"DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.{name}"
            )
    native_clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    native_stats = getattr(torch._C, "_get_DTensor_sharding_propagator_cache_stats", None)
    if (native_clear is None) != (native_stats is None):
        have, lack = ("clear", "stats") if native_stats is None else ("stats", "clear")
        raise _unsupported(
            f"the native sharding-propagation cache's {lack} function beside its {have} function"
        )
    meta = next(
        (
            NamedCache("tensor meta", cache.cache_clear, _lru_size(cache))
            for name in ("_propagate_tensor_meta_cached", "_propagate_tensor_meta")
            if _follow(cache := _follow(type(propagator), name), "cache_clear") is not MISSING
        ),
        None,
    )
    plans = _transform_plans() if _masks_are_confused() else None
    return PropagatorApi(python_cache, native_clear, native_stats, meta, plans, propagator)


def _transform_plans() -> NamedCache | None:
    cache = _follow(redistribute_module(), "_gen_transform_infos")
    if _follow(cache, "cache_clear") is MISSING:
        return None
    return NamedCache("transform plans", cache.cache_clear, _lru_size(cache))


@functools.cache
def _masks_are_confused() -> bool:
    """Tell a torch whose masked partial placements are equal though each keeps a mask of its own."""
    home = importlib.import_module("torch.distributed.tensor._ops._embedding_ops")
    kind = getattr(home, "_MaskPartial", None) or getattr(home, "MaskPartial", None)
    return kind is not None and kind() == kind()


def cold_caches() -> tuple[NamedCache, ...]:
    """Find the caches that feed propagation: FakeTensor results, redistribution plans, mesh topology."""
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    redistribute = redistribute_module()
    collectives = importlib.import_module("torch.distributed.tensor._collective_utils")
    found = [
        NamedCache("FakeTensor", fake_tensor.cache_clear, lambda: len(fake_tensor.cache)),
    ]
    if (plans := _transform_plans()) is not None:
        found.append(plans)
    topology = _follow(collectives, "MeshTopoInfo.build_from_mesh")
    if _follow(topology, "cache_clear") is not MISSING:
        found.append(NamedCache("mesh topology", topology.cache_clear, _lru_size(topology)))
    planner_clear = _follow(redistribute, "clear_redistribute_planner_cache")
    planners = _follow(redistribute, "_planner_cache")
    if planner_clear is not MISSING and planners is not MISSING:
        found.append(NamedCache("redistribution planners", planner_clear, lambda: len(planners)))
    return tuple(found)


class _UncachedCounts(threading.local):
    """Who counts the uncached propagations of this thread."""

    def __init__(self) -> None:
        self.counts: list[list[int]] = []


_uncached = _UncachedCounts()


@contextmanager
def counting_uncached(propagator: Any) -> Iterator[list[int]]:
    """Count this thread's calls of the propagator's uncached entry, in the one element of the list.

    Tracing and some modes propagate on every call without asking a cache, and no counter shows it.
    The propagator's own cache holds the entry as it was bound at start, and does not pass here.
    """
    count = [0]
    with _uncached_hook(propagator).in_place():
        _uncached.counts.append(count)
        try:
            yield count
        finally:
            _uncached.counts[:] = [other for other in _uncached.counts if other is not count]


@functools.cache
def _uncached_hook(propagator: Any) -> SharedHook:
    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            for count in _uncached.counts:
                count[0] += 1
            return inner(*args, **kwargs)

        return counted

    return SharedHook(propagator, "propagate_op_sharding_non_cached", wrap)


def redistribute_module() -> Any:
    """Return the module in which DTensors are redistributed."""
    return importlib.import_module("torch.distributed.tensor._redistribute")


def dispatch_loggers() -> Sequence[logging.Logger]:
    """Return the loggers whose DEBUG level slows the dispatcher down."""
    return [logging.getLogger(f"torch.distributed.tensor.{name}") for name in ("_dispatch", "_sharding_prop")]


def _follow(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, MISSING)
    return owner


def _lru_size(cache: Any) -> Callable[[], int]:
    return lambda: int(cache.cache_info().currsize)


def _unsupported(what: str) -> UnsupportedTorchError:
    return UnsupportedTorchError(
        f"torch {torch.__version__} cannot be measured: it lacks {what}; torch 2.5 to 2.15 have it"
    )
