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
    ours, theirs = actual.local_shards(), expected.local_shards()
    if len(ours) != len(theirs):
        yield f"{len(ours)} local shards, not {len(theirs)}"
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        try:
            torch.testing.assert_close(our.tensor, their.tensor, rtol=0, atol=0, equal_nan=True)
        except AssertionError as error:
            yield f"local shard {number}: {' '.join(str(error).split())}"
        if our.metadata != their.metadata:
            yield f"local shard {number}: metadata {our.metadata}, not {their.metadata}"
    ours, theirs = _remote_shards(actual), _remote_shards(expected)
    if ours != theirs:
        yield f"remote shards {ours}, not {theirs}"
    for name in ("metadata", "sharding_spec"):
        ours, theirs = getattr(actual, name)(), getattr(expected, name)()
        if ours != theirs:
            yield f"{name.replace('_', ' ')} {ours}, not {theirs}"


def _remote_shards(tensor: Any) -> Any:
    """Return the number of shards by other rank, or a text if the tensor has no references to them."""
    try:
        return {rank: len(shards) for rank, shards in sorted(tensor.remote_shards().items())}
    except RuntimeError:
        return "not referenced (init_rrefs=False)"
