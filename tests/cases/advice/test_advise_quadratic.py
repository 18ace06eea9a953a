"""Right: advice takes time in proportion to the step: 2,000 shapes take 8 times as long as 250, not 70 times.

A step redistributes N shapes twice each; measured is the CPU time of what `steps()` does after its last step.
"""

import time

import torch
from torch.distributed.tensor import Shard, distribute_tensor


def seconds_after(dtdispatch, mesh, n, attempt):
    caches = [distribute_tensor(torch.rand(8, 4 + i), mesh, [Shard(0)]) for i in range(n)]
    ended = 0.0

    def step():  # n tokens; the cache of each token has its own length
        nonlocal ended
        for cache in caches:
            cache.full_tensor()
            cache.full_tensor()
        ended = time.thread_time()

    dtdispatch.steps(step, warmup=1, steps=1, name=f"{n} shapes, {attempt}")
    return time.thread_time() - ended


def test_decode(dtdispatch, device_mesh):
    few, many = (
        min(seconds_after(dtdispatch, device_mesh, n, attempt) for attempt in range(2)) for n in (250, 2000)
    )
    print(f"\n{few:.3f} s for 250, {many:.3f} s for 2,000")
    if dtdispatch.enabled:
        assert many < 30 * max(few, 0.05)  # below 0.05 s noise decides; quadratic advice takes 14 s
