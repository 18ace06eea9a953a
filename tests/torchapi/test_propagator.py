"""The sharding propagator and its caches: what is said where one is gone."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.propagator import ShardingCaches, cold_caches

pytestmark = pytest.mark.torch

CLEAR = "_clear_DTensor_sharding_propagator_cache"
STATS = "_get_DTensor_sharding_propagator_cache_stats"


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


@pytest.mark.parametrize(
    ("gone", "lacks"),
    [(CLEAR, "clear function beside its stats"), (STATS, "stats function beside its clear")],
)
def test_a_native_cache_with_one_of_its_two_functions_is_refused(
    monkeypatch: pytest.MonkeyPatch, gone: str, lacks: str
) -> None:
    monkeypatch.delattr(torch._C, gone)
    assert lacks in unsupported()


def test_a_cold_cache_that_torch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _redistribute

    every = {cache.name for cache in cold_caches()}
    monkeypatch.delattr(_redistribute, "_gen_transform_infos")
    monkeypatch.delattr(_redistribute, "_planner_cache")
    assert every - {cache.name for cache in cold_caches()} == {
        "transform plans",
        "redistribution planners",
    }
