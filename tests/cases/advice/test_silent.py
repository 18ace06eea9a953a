"""Right: an advice is due. Five all_reduces become one as soon as a flattened mesh exists; two mesh dimensions of size 1 make each miss of `mm` 50 times as long."""

import time

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def test_flatten(dtdispatch, mesh_factory):
    mesh = mesh_factory((2, 2, 2, 2, 2), dim_names=tuple("abcde"))
    x = distribute_tensor(torch.rand(32, 32), mesh, [Shard(0)] * 5)
    before = dtdispatch.steps(lambda: x.sum().full_tensor(), name="five dimensions")
    mesh._flatten("all")
    after = dtdispatch.steps(lambda: x.sum().full_tensor(), name="one flattened mesh exists")
    if dtdispatch.enabled:
        assert (before.collectives_per_step, after.collectives_per_step) == (5, 1)
        assert not any(advice.count for advice in after.advice)
        assert 0 < sum(advice.count for advice in before.advice) <= 4


def test_ones(dtdispatch, mesh_factory):
    def counted(*shape):  # each step has a new shape, and misses
        mesh, rest, seconds = mesh_factory(shape), [Replicate()] * (len(shape) - 1), []
        weight = distribute_tensor(torch.rand(8, 8), mesh, [Replicate(), *rest])
        inputs = [distribute_tensor(torch.rand(rows, 8), mesh, [Shard(0), *rest]) for rows in (8, 12, 16)]

        def step(x):
            start = time.perf_counter()
            x @ weight
            seconds.append(time.perf_counter() - start)

        return dtdispatch.steps(step, inputs=inputs, warmup=1, name=str(shape)), min(seconds)

    (plain, fast), (ones, slow) = counted(2, 2), counted(2, 1, 2, 1)
    assert slow > 5 * fast
    if dtdispatch.enabled:
        assert plain.misses_per_step == ones.misses_per_step == 1
        assert {advice.change for advice in ones.advice} - {advice.change for advice in plain.advice}
