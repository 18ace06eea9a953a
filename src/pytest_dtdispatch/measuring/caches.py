"""What miss and cold mean: which caches are emptied, and which counters prove it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytest_dtdispatch.measuring.proofs import Reader
from pytest_dtdispatch.torchapi import names as torchapi


class ShardingCaches:
    """The sharding-propagation caches of this torch, as the thread that calls sees them.

    Both caches are per thread: clear and read in the thread that runs the op.

    Example:
        >>> caches = ShardingCaches()
        >>> caches.clear()
        >>> [tuple(reader()[:2]) for reader in caches.readers()]
        [(0, 0), (0, 0)]
    """

    def __init__(self) -> None:
        self._api = torchapi.propagator_api()
        self._cold = torchapi.cold_caches()

    @property
    def interface(self) -> str:
        """Which caches this torch has: ``native+python`` or ``python``."""
        return self._api.interface

    def clear(self) -> None:
        """Empty every sharding-propagation cache of this thread, and the tensor-meta cache.

        The native cache alone is not enough: some ops are answered by the Python cache. The Python cache
        alone is not either: on torch 2.10 and later most ops never ask it.
        """
        self._api.python_cache.cache.cache_clear()
        if self._api.native_clear:
            self._api.native_clear()
        if self._api.tensor_meta:
            self._api.tensor_meta.clear()
        if self._api.transform_plans:
            self._api.transform_plans.clear()

    def clear_cold(self) -> None:
        """Empty the caches that feed propagation too; they belong to the whole process."""
        for cache in self._cold:
            cache.clear()

    def clear_all(self) -> None:
        """Forget everything about every mesh: what must happen when a process group comes or goes."""
        self.clear()
        self.clear_cold()

    def cold_entries(self) -> int:
        """How many entries are left in the caches that feed propagation."""
        return sum(cache.size() for cache in self._cold)

    @property
    def has_native(self) -> bool:
        """Whether this torch has a native cache."""
        return self._api.native_stats is not None

    def native_stats(self) -> tuple[int, int]:
        """Hits and misses of this thread's native cache; none of either where torch has no such cache."""
        return self._api.native_stats() if self._api.native_stats else (0, 0)

    def entries(self) -> dict[str, int]:
        """How many entries each cache has that tells: all but the native one."""
        meta = (self._api.tensor_meta,) if self._api.tensor_meta else ()
        entries = {cache.name: cache.size() for cache in (*meta, *self._cold)}
        return {"python": self._api.python_cache.cache.cache_info().currsize, **entries}

    def readers(self) -> tuple[Reader, ...]:
        """Readers of this thread's counters, the cache that is asked first in front."""
        python = self._api.python_cache.cache.cache_info
        return (self._api.native_stats, python) if self._api.native_stats else (python,)

    def counting_uncached(self) -> AbstractContextManager[list[int]]:
        """Count propagations that ask no cache."""
        return torchapi.counting_uncached(self._api.propagator)
