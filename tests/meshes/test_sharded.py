"""Equality of sharded tensors, and the first difference of unequal ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pytest_dtdispatch.meshes.sharded import assert_sharded_tensor_equal

pytestmark = pytest.mark.torch


@dataclass
class Shard:
    tensor: torch.Tensor = field(default_factory=lambda: torch.tensor([[1.0, float("nan")], [3.0, 4.0]]))
    metadata: str = "rows 0 to 2"


@dataclass
class Sharded:
    """The part of the interface of ShardedTensor that the assertion uses."""

    shards: list[Shard] = field(default_factory=lambda: [Shard(), Shard()])
    remote: dict[int, list[Any]] | None = field(default_factory=lambda: {1: [None]})
    whole: str = "4x2"
    spec: str = "by rows"

    def local_shards(self) -> list[Shard]:
        return self.shards

    def remote_shards(self) -> dict[int, list[Any]]:
        if self.remote is None:
            raise RuntimeError("ShardedTensor created with init_rrefs=False")
        return self.remote

    def metadata(self) -> str:
        return self.whole

    def sharding_spec(self) -> str:
        return self.spec


def change_element(sharded: Sharded) -> None:
    sharded.shards[1].tensor[1, 0] = 5.0


def change_dtype(sharded: Sharded) -> None:
    sharded.shards[0].tensor = sharded.shards[0].tensor.double()


CHANGES: list[tuple[Callable[[Sharded], object], str]] = [
    (change_element, "local shard 1: Tensor-likes are not equal! Mismatched elements: 1 / 4"),
    (change_dtype, "local shard 0: The values for attribute 'dtype' do not match: torch.float64 !="),
    (
        lambda s: setattr(s.shards[0], "tensor", torch.ones(3)),
        "local shard 0: The values for attribute 'shape'",
    ),
    (lambda s: setattr(s.shards[1], "metadata", "else"), "local shard 1: metadata else, not rows 0 to 2"),
    (lambda s: s.shards.pop(), "1 local shards, not 2"),
    (lambda s: setattr(s, "remote", {}), "remote shards {}, not {1: 1}"),
    (lambda s: setattr(s, "remote", None), "remote shards not referenced (init_rrefs=False), not {1: 1}"),
    (lambda s: setattr(s, "whole", "else"), "metadata else, not 4x2"),
    (lambda s: setattr(s, "spec", "else"), "sharding spec else, not by rows"),
]


def test_equal_tensors_pass_with_or_without_remote_shards() -> None:
    assert_sharded_tensor_equal(Sharded(), Sharded())
    assert_sharded_tensor_equal(Sharded(remote=None), Sharded(remote=None))


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_first_difference_is_named(change: Callable[[Sharded], object], message: str) -> None:
    other = Sharded()
    change(other)
    with pytest.raises(AssertionError) as raised:
        assert_sharded_tensor_equal(other, Sharded())
    assert str(raised.value).startswith(f"sharded tensors differ: {message}")
