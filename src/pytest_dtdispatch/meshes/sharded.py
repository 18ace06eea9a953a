"""Comparison of two sharded tensors, shard by shard, on this rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch


def assert_sharded_tensor_equal(actual: Any, expected: Any) -> None:
    """Assert that two tensors of ``torch.distributed._shard.sharded_tensor`` are equal.

    Compares the local shards and their metadata bit for bit, the number of shards on other ranks if both
    tensors were created with ``init_rrefs=True``, the metadata of the whole tensor, and the sharding spec.
    Every rank compares its own shards: all ranks must call this.

    torch deprecates ``ShardedTensor`` and warns at every op on one; these warnings are suppressed here.

    Args:
        actual: a ``ShardedTensor``.
        expected: another one.

    Raises:
        AssertionError: they differ; the message has the first difference.

    Example:
        >>> assert_sharded_tensor_equal(restored, saved)  # doctest: +SKIP
    """
    __tracebackhide__ = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use DTensor instead", FutureWarning)
        difference = next(_differences(actual, expected), "")
    if difference:
        raise AssertionError(f"sharded tensors differ: {difference}")


def _differences(actual: Any, expected: Any) -> Iterator[str]:
    shards, expected_shards = actual.local_shards(), expected.local_shards()
    if len(shards) != len(expected_shards):
        yield f"{len(shards)} local shards, not {len(expected_shards)}"
    for number, (shard, other) in enumerate(zip(shards, expected_shards, strict=False)):
        try:
            torch.testing.assert_close(shard.tensor, other.tensor, rtol=0, atol=0, equal_nan=True)
        except AssertionError as error:
            yield f"local shard {number}: {' '.join(str(error).split())}"
        if shard.metadata != other.metadata:
            yield f"local shard {number}: metadata {shard.metadata}, not {other.metadata}"
    pairs = {
        "remote shards": (_remote_shards(actual), _remote_shards(expected)),
        "metadata": (actual.metadata(), expected.metadata()),
        "sharding spec": (actual.sharding_spec(), expected.sharding_spec()),
    }
    for name, (value, expected_value) in pairs.items():
        if value != expected_value:
            yield f"{name} {value}, not {expected_value}"


def _remote_shards(tensor: Any) -> Any:
    """Return the number of shards by other rank, or a text if the tensor has no references to them."""
    try:
        return {rank: len(shards) for rank, shards in sorted(tensor.remote_shards().items())}
    except RuntimeError:
        return "not referenced (init_rrefs=False)"
