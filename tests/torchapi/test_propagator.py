"""Clearing and counting caches of this torch, and what is said where one is gone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.hooks import SLOW_PATH
from pytest_dtdispatch.torchapi.propagator import ShardingCaches, cold_caches
from tests.probes import NATIVE_CACHE, has, has_rule, needs, needs_rule

pytestmark = pytest.mark.torch

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"
Shard = Callable[..., Any]


def counters(caches: ShardingCaches) -> list[tuple[int, int]]:
    return [(read[0], read[1]) for read in (reader() for reader in caches.readers())]


def misses(caches: ShardingCaches) -> int:
    return sum(missed for _, missed in counters(caches))


def hits(caches: ShardingCaches) -> int:
    return sum(hit for hit, _ in counters(caches))


# An op of the native cache and one of the Python cache: clearing one of the two caches does not do.
OPS = [
    pytest.param(lambda a: a + a, id="add"),
    pytest.param(lambda a: a.argmax(1), id="argmax", marks=needs_rule("argmax.default")),
]


@pytest.mark.parametrize("op", OPS)
def test_after_a_clear_the_next_call_propagates_and_the_one_after_does_not(
    shard: Shard, op: Callable[[Any], Any]
) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    op(a)
    caches.clear()
    assert set(counters(caches)) == {(0, 0)}
    op(a)
    propagated = misses(caches)
    assert propagated > 0
    hits_before = hits(caches)
    op(a)
    assert misses(caches) == propagated
    assert hits(caches) > hits_before


def test_the_cache_that_answers_most_ops_is_read_first(shard: Shard) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    caches.clear()
    a + a
    a + a
    if has(NATIVE_CACHE):
        assert caches.interface == "native+python"
        assert counters(caches) == [(1, 1), (0, 0)]
    else:
        assert caches.interface == "python"
        assert counters(caches) == [(1, 1)]


def test_a_thread_counts_and_clears_its_own_calls(shard: Shard) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    caches.clear()
    a + a

    def in_a_thread() -> tuple[int, int]:
        assert misses(caches) == 0
        a + a
        propagated = misses(caches)
        caches.clear()
        return propagated, misses(caches)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_a_thread).result() == (1, 0)
    assert (hits(caches), misses(caches)) == (0, 1)
    a + a
    assert (hits(caches), misses(caches)) == (1, 1)


def test_a_miss_leaves_what_feeds_propagation_in_place(shard: Shard) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    a + a
    fed = caches.cold_entries()
    caches.clear()
    assert caches.cold_entries() == fed > 0


def test_clear_all_empties_everything(shard: Shard) -> None:
    caches, a = ShardingCaches(), shard(8, 8)
    a @ a
    if has_rule("argmax.default"):  # of the Python cache where there is a native one
        a.argmax(1)
    caches.clear_all()
    assert set(counters(caches)) == {(0, 0)}
    assert caches.cold_entries() == 0


def test_propagation_past_the_caches_is_counted_and_the_propagator_left_as_it_was(shard: Shard) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = dict(vars(propagator))
    caches, a = ShardingCaches(), shard(8, 8)
    caches.clear()
    with caches.counting_uncached() as count:
        a + a
        on_a_miss = count[0]
        a + a
    # The Python cache holds the entry itself: what it answers or misses does not pass what counts.
    assert count[0] == on_a_miss == (1 if caches.has_native else 0)
    assert vars(propagator).keys() == before.keys()


def test_a_torch_without_a_native_cache_is_measured_on_its_python_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C, CLEAR, raising=False)
    monkeypatch.delattr(torch._C, STATS, raising=False)
    monkeypatch.delattr(type(DTensor._op_dispatcher), SLOW_PATH, raising=False)
    caches = ShardingCaches()
    caches.clear()
    assert caches.interface == "python"
    assert counters(caches) == [(0, 0)]


def unsupported() -> str:
    """Ask for the caches; return the one line that is said where they are not there."""
    with pytest.raises(UnsupportedTorchError) as raised:
        ShardingCaches()
    text = str(raised.value)
    assert "\n" not in text
    assert torch.__version__ in text
    return text


def test_a_torch_without_the_dispatcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DTensor, "_op_dispatcher")
    assert "propagate_op_sharding" in unsupported()


def test_a_torch_whose_propagator_has_no_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    monkeypatch.setattr(propagator, "propagate_op_sharding", object())
    assert "propagate_op_sharding.cache.cache_clear" in unsupported()


@needs(NATIVE_CACHE)
@pytest.mark.parametrize(
    ("gone", "lacks"),
    [(CLEAR, "clear function beside its stats"), (STATS, "stats function beside its clear")],
)
def test_a_native_cache_with_one_of_its_two_functions_is_refused(
    monkeypatch: pytest.MonkeyPatch, gone: str, lacks: str
) -> None:
    monkeypatch.delattr(torch._C, gone)
    assert lacks in unsupported()


@pytest.mark.skipif(not hasattr(DTensor._op_dispatcher, SLOW_PATH), reason=f"this torch lacks {SLOW_PATH}")
def test_a_native_cache_that_is_neither_cleared_nor_counted_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C, CLEAR)
    monkeypatch.delattr(torch._C, STATS)
    assert "what clears and counts the native cache" in unsupported()


def test_a_cold_cache_that_torch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _redistribute

    every = {cache.name for cache in cold_caches()}
    monkeypatch.delattr(_redistribute, "_gen_transform_infos")
    monkeypatch.delattr(_redistribute, "_planner_cache", raising=False)
    gone = {"transform plans", "redistribution planners"} & every
    assert "transform plans" in gone
    assert every - {cache.name for cache in cold_caches()} == gone
