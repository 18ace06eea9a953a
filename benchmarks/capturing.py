"""What a capture costs a program that calls one op over and over, and what it holds meanwhile.

The op, a small one, is measured at its first call; each further one is counted. Blocks of plain calls and
of captured ones take turns, and the lowest block median of each is compared, so that a neighbour on the
machine does not decide. Then come 300,000 captured calls; objects and memory are counted before and after.

    python benchmarks/capturing.py
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.steps.held import resident_bytes

BOUND = 6
BLOCKS, CALLS, TOTAL = 60, 200, 300_000


def block_median(op: Callable[[], Any]) -> float:
    """Return the median nanoseconds of a call, in a block of calls."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        op()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    mesh = ProcessGroupOwner().mesh(Place((4,), "cpu", "fake"))
    a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])

    def op() -> Any:
        return a + a

    book, plain, captured = TestResults(), [], []
    for _ in range(BLOCKS):
        plain.append(block_median(op))
        with SignatureCapture(book, Plan(1, 1)):
            op()
            captured.append(block_median(op))
    ratio = min(captured) / min(plain)
    print(f"plain {min(plain) / 1e3:.1f} us, captured {min(captured) / 1e3:.1f} us: {ratio:.2f} times")
    with SignatureCapture(book, Plan(1, 1)):
        op()
        gc.collect()
        objects, memory = len(gc.get_objects()), resident_bytes()
        for _ in range(TOTAL):
            op()
        gc.collect()
        grown, now = len(gc.get_objects()) - objects, resident_bytes()
    assert memory is not None
    assert now is not None
    print(f"{TOTAL:,} captured calls: {grown:+} objects, {(now - memory) / 2**20:+.1f} MiB resident")
    print(f"the bounds are {BOUND} times, and no growth")
    raise SystemExit(ratio > BOUND or grown > 100)


if __name__ == "__main__":
    main()
