"""What measuring costs: captured ops, counted steps and watched loops, each beside the same unmeasured.

``python benchmarks/overhead.py``. Both ways run in turn in one process, each first in every second turn.
Every ratio has a bound; the exit status is 1 where one is above it.
"""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_mlp, tensor_parallel_step

BOUNDS = {"capturing": 6, "counting": 1.5, "watching": 1.1}  # times as long
BLOCKS, CALLS, TOTAL = 60, 200, 300_000
COUNTED, STEPS = 41, 5
LOOPS, LOOP_STEPS, MISSING = 9, 300, 150
Step = Callable[[], Any]


def seconds(step: Step) -> float:
    """Time one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def in_turns(plain: Callable[[], float], other: Callable[[], float], turns: int) -> list[list[float]]:
    """Run both ways in turn, and return what each gave."""
    found: list[list[float]] = [[], []]
    for turn in range(turns):
        for side in (1, 0) if turn % 2 else (0, 1):
            found[side].append((plain, other)[side]())
    return found


def peak_bytes() -> int:
    """Return the most memory that this process had, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def capture(mesh: DeviceMesh) -> float:
    """Capture an op that is called over and over: it is measured once, and counted at each further call."""
    a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Replicate()])
    book = TestResults()

    def op() -> Any:
        return a + a

    def block() -> float:
        return statistics.median(seconds(op) for _ in range(CALLS))

    def captured() -> float:
        with SignatureCapture(book, Plan(1, 1)):
            op()
            return block()

    plain_s, captured_s = map(min, in_turns(block, captured, BLOCKS))  # what a neighbour did not slow
    print(f"a captured call: {captured_s * 1e6:.1f} us for {plain_s * 1e6:.1f} us")
    with SignatureCapture(book, Plan(1, 1)):
        op()
        gc.collect()
        objects, memory = len(gc.get_objects()), peak_bytes()
        for _ in range(TOTAL):
            op()
        gc.collect()
        grown, more = len(gc.get_objects()) - objects, peak_bytes() - memory
    print(f"{TOTAL:,} captured calls: {grown:+} objects, {more / 2**20:+.1f} MiB resident")
    if grown > 100:
        sys.exit("captured calls leave objects behind")
    return captured_s / plain_s


def count(step: Step) -> float:
    """Count a step, and return how many times as long it takes; what is done between steps is printed."""
    between: list[float] = []

    def counted() -> float:
        with StepCounter() as counter:
            step()  # the first one meets hooks that were just put in place: that is the warm-up's
            counter.lap()
            counted_s = seconds(step)
            between.append(seconds(counter.lap))
            return counted_s

    plain_s, counted_s = map(statistics.median, in_turns(lambda: seconds(step), counted, COUNTED))
    whole = [
        seconds(lambda: run_and_count(StepCalls("step", step, 3, STEPS)))
        / seconds(lambda: [step() for _ in range(3 + STEPS)])
        for _ in range(5)
    ]
    more = f"between steps {statistics.median(between) * 1e3:.2f} ms, steps() {statistics.median(whole):.2f}x"
    print(f"  counted {counted_s * 1e3:.3f} ms for {plain_s * 1e3:.3f} ms; {more}")
    return counted_s / plain_s


def watch(step: Step, missing: Step) -> float:
    """Watch a loop of steps, one of which misses; opening and closing the watch are part of it."""
    lines: list[str] = []

    def loop(ended: Step = lambda: None) -> None:
        for number in range(1, LOOP_STEPS + 1):
            step()
            if number == MISSING:
                missing()
            ended()

    def watched() -> None:
        lines.clear()
        with StepWatch(lines.append) as watch:
            loop(watch.step)

    loop()
    plain_s, watched_s = map(
        statistics.median, in_turns(lambda: seconds(loop), lambda: seconds(watched), LOOPS)
    )
    named = [text.split(":")[1].strip() for text in lines if "miss:" in text]
    print(f"  watched {watched_s:.3f} s for {plain_s:.3f} s; misses at {', '.join(named)}")
    return watched_s / plain_s


class Wrapping(torch.nn.Module):
    """Wraps, unwraps and redistributes, and does hardly anything else."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, local: torch.Tensor) -> torch.Tensor:
        """Take a local tensor, and give one."""
        weight = self.weight.redistribute(placements=[Replicate()])
        wrapped: Any = DTensor.from_local(local, weight.device_mesh, [Replicate()]) + weight
        return wrapped.to_local()  # type: ignore[no-any-return]


def prepare(grid: DeviceMesh, line: DeviceMesh) -> tuple[dict[str, Step], dict[str, Step], Step]:
    """Prepare the steps that are counted, those that are watched, and an op that misses at each call."""
    blocks = [tensor_parallel_step(grid) for _ in range(4)]
    mlp, batch = tensor_parallel_mlp(grid)
    compiled = torch.compile(mlp, backend="aot_eager")
    local, weight = torch.rand(8, 8), DTensor.from_local(torch.rand(1, 8), line, [Shard(0)])
    layers = torch.nn.Sequential(*(Wrapping(weight.requires_grad_()) for _ in range(5)))
    rows = iter(range(4, 10**9))

    def missing() -> Any:
        a: Any = DTensor.from_local(torch.rand(next(rows), 8), grid, [Shard(0), Replicate()])
        return a + a

    both: dict[str, Step] = {
        "tensor parallel": blocks[0],
        "4 tensor parallel blocks": lambda: [block() for block in blocks],
        "FSDP2, AdamW": fsdp_training_step(line),
    }
    counted: dict[str, Step] = {
        "tensor parallel, 1 miss": lambda: [step() for step in (blocks[0], missing)],
        "wraps and redistributions": lambda: layers(local).sum().backward(),
    }
    watched: dict[str, Step] = {"8 compiled forward passes": lambda: [compiled(batch) for _ in range(8)]}
    return {**both, **counted}, {**both, **watched}, missing


def main() -> int:
    """Print a line for each, and the worst ratio of each kind."""
    torch.set_num_threads(1)
    owner = ProcessGroupOwner()
    grid = owner.mesh(MeshSpec((2, 4), "cpu", "fake"), ("dp", "tp"))
    counted, watched, missing = prepare(grid, owner.mesh(MeshSpec((8,), "cpu", "fake"), ("dp",)))
    worst = {"capturing": capture(grid), "counting": 0.0, "watching": 0.0}
    for name, step in counted.items():
        print(name)
        worst["counting"] = max(worst["counting"], count(step))
    for name, step in watched.items():
        print(name)
        worst["watching"] = max(worst["watching"], watch(step, missing))
    print(f"frames that were compiled: {torch._dynamo.utils.counters['frames']['total']}")
    owner.close()
    for name, ratio in worst.items():
        print(f"{name}: {ratio:.3f} times as long at most; the bound is {BOUNDS[name]}")
    return int(any(ratio > BOUNDS[name] for name, ratio in worst.items()))


if __name__ == "__main__":
    sys.exit(main())
