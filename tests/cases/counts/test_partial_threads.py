"""Four threads read a partial DTensor 500 times each: 2,000 reads, all of them partial."""

from __future__ import annotations

import threading

import torch
from torch.distributed.tensor import Shard, distribute_tensor


def test_threads(dtdispatch, device_mesh):
    total = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)]).sum()
    assert total.placements[0].is_partial()

    def work():
        for _ in range(500):
            total.item()

    def step():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    counted = [dtdispatch.steps(step, warmup=1, steps=1, name=f"run {n}") for n in range(4)]
    assert [(each.reads_per_step, each.partial_reads_per_step) for each in counted] == [(2000, 2000)] * 4
