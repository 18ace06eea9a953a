"""Clearing and counting the caches of this torch, and errors if one is missing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.observe import SLOW_PATH
from pytest_dtdispatch.torchapi.propagator import ShardingCaches, cold_caches
from tests.probes import NATIVE_CACHE, SLOW_PATH_NAME, has, needs, needs_rule

pytestmark = pytest.mark.torch

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"
Shard = Callable[..., Any]


def counters(caches: ShardingCaches) -> list[tuple[int, ...]]:
    return [tuple(reader()[:2]) for reader in caches.readers()]


def counted(caches: ShardingCaches) -> tuple[int, int]:
    """Return hits and misses of all caches."""
    hits, misses = zip(*counters(caches), strict=True)
    return sum(hits), sum(misses)


# An op of the native cache and one of the Python cache: clearing only one cache is not sufficient.
OPS = [
    pytest.param(lambda a: a + a, id="add"),
    pytest.param(lambda a: a.argmax(1), id="argmax", marks=needs_rule("argmax.default")),
]


@pytest.mark.parametrize("op", OPS)
def test_only_next_call_after_a_clear_propagates(shard: Shard, op: Callable[[Any], Any]) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    op(a)
    fed = caches.cold_entries()
    caches.clear()
    assert set(counters(caches)) == {(0, 0)}
    assert caches.cold_entries() == fed > 0, "inputs of propagation stay cached"
    op(a)
    hits, propagated = counted(caches)
    assert propagated > 0
    op(a)
    assert counted(caches)[1] == propagated
    assert counted(caches)[0] > hits
    a @ a  # fills the caches of redistributions
    caches.clear_all()
    assert set(counters(caches)) == {(0, 0)}
    assert caches.cold_entries() == 0


def test_thread_counts_and_clears_its_own_calls(shard: Shard) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    caches.clear()
    a + a

    def in_a_thread() -> tuple[int, int]:
        assert counted(caches)[1] == 0
        a + a
        propagated = counted(caches)[1]
        caches.clear()
        return propagated, counted(caches)[1]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_a_thread).result() == (1, 0)
    assert counted(caches) == (0, 1)
    a + a
    assert counters(caches) == [(1, 1), (0, 0)][: len(counters(caches))], (
        "the most frequent cache is read first"
    )
    assert caches.interface == ("native+python" if has(NATIVE_CACHE) else "python")


def test_uncached_propagation_is_counted(shard: Shard) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = dict(vars(propagator))
    caches, a = ShardingCaches(), shard(8, 8)
    caches.clear()
    with caches.counting_uncached() as count:
        a + a
        on_a_miss = count[0]
        a + a
    # The Python cache already holds the entry: its hits and misses bypass the counter.
    assert count[0] == on_a_miss == (1 if caches.has_native else 0)
    assert vars(propagator).keys() == before.keys()


def test_python_cache_is_measured_without_native_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, CLEAR, raising=False)
    monkeypatch.delattr(torch._C, STATS, raising=False)
    monkeypatch.delattr(type(DTensor._op_dispatcher), SLOW_PATH, raising=False)
    caches = ShardingCaches()
    caches.clear()
    assert caches.interface == "python"
    assert counters(caches) == [(0, 0)]


def test_missing_cold_cache_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _redistribute

    every = {cache.name for cache in cold_caches()}
    monkeypatch.delattr(_redistribute, "_gen_transform_infos")
    monkeypatch.delattr(_redistribute, "_planner_cache", raising=False)
    gone = {"transform plans", "redistribution planners"} & every
    assert "transform plans" in gone
    assert every - {cache.name for cache in cold_caches()} == gone


NATIVE, SLOW = needs(NATIVE_CACHE), needs(SLOW_PATH_NAME)
BOTH = [f"torch._C.{CLEAR}", f"torch._C.{STATS}"]


@pytest.mark.parametrize(
    ("gone", "lacks"),
    [
        (["torch.distributed.tensor.DTensor._op_dispatcher"], "propagate_op_sharding"),
        pytest.param(BOTH[:1], "clear function beside its stats", marks=NATIVE),
        pytest.param(BOTH[1:], "stats function beside its clear", marks=NATIVE),
        pytest.param(BOTH, "functions that clear and count the native cache", marks=SLOW),
    ],
)
def test_missing_cache_function_is_an_error(
    monkeypatch: pytest.MonkeyPatch, gone: list[str], lacks: str
) -> None:
    for name in gone:
        monkeypatch.delattr(name)
    with pytest.raises(UnsupportedTorchError) as raised:
        ShardingCaches()
    text = str(raised.value)
    assert lacks in text
    assert "\n" not in text
    assert torch.__version__ in text
