"""The caches of torch that keep how DTensors are redistributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_dtdispatch.torchapi.propagator import ShardingCaches, plan_caches, redistribute_module


class PlanCaches:
    """Plans of redistribution, and the planners that make them: they belong to the whole process.

    A redistribution asks for its plan alone. It is made by a planner, which torch keeps too where it has any.
    """

    def __init__(self, sharding: ShardingCaches) -> None:
        self._sharding = sharding
        self._caches = plan_caches()

    def clear(self) -> None:
        """Forget every plan, and every planner."""
        for cache in self._caches:
            cache.clear()

    def clear_cold(self) -> None:
        """Empty the caches that feed planning too."""
        self._sharding.clear_cold()

    def cold_entries(self) -> int:
        """How many entries are left in the caches that feed planning."""
        return self._sharding.cold_entries()

    def readers(self) -> tuple[Callable[[], Sequence[Any]], ...]:
        """Return the reader of the counters of plans; none where this torch does not count them."""
        info = getattr(getattr(redistribute_module(), "_gen_transform_infos", None), "cache_info", None)
        return (info,) if info else ()

    @contextmanager
    def counting_uncached(self) -> Iterator[list[int]]:
        """Count plans that are made without asking the cache: none is, but where torch traces."""
        yield [0]
