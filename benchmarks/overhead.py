"""Measure the overhead of captured ops, counted steps and watched loops, beside unmeasured ones.

``python benchmarks/overhead.py``, or with names of parts: ``python benchmarks/overhead.py watching``.
Measured and unmeasured code alternates in one process. Every ratio has a bound; the exit status is 1 if one
is exceeded.

All times are CPU times of the thread. The time of a watched loop includes everything between its steps.
Opening and closing the watch is printed separately. The ratio is the median over pairs, with its 95 %
interval. The second ratio takes for each step number its fastest occurrence: this excludes load on the
machine, but not work that a watch does in certain steps. The third takes the median of these steps.
"""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.stats.intervals import paired_ratio
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_mlp, tensor_parallel_step

CAPTURED_BOUND, COUNTED_BOUND = 6, 1.5  # times as long
WATCHED_BOUND, LONG_WATCHED_BOUND, LONG_S = 1.1, 1.05, 2e-3  # the second for steps of LONG_S seconds or more
BLOCKS, CALLS, TOTAL = 60, 200, 300_000
COUNTED, STEPS = 41, 5
LOOPS, LOOP_STEPS, MISSING = 11, 300, 150
Step = Callable[[], Any]
T = TypeVar("T")


def seconds(step: Step) -> float:
    """Return the CPU time of one call, which excludes other programs."""
    start = time.thread_time()
    step()
    return time.thread_time() - start


def in_turns(plain: Callable[[], T], other: Callable[[], T], turns: int) -> list[list[T]]:
    """Run both functions in turns, and return the results of each."""
    found: list[list[T]] = [[], []]
    for turn in range(turns):
        for side in (1, 0) if turn % 2 else (0, 1):
            found[side].append((plain, other)[side]())
    return found


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def capture(mesh: DeviceMesh) -> bool:
    """Capture repeated calls of an op, and return whether the ratio exceeds its bound.

    The op is measured once, and its further calls are counted.
    """
    a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Replicate()])
    store = ResultStore()

    def op() -> Any:
        return a + a

    def block() -> float:
        return statistics.median(seconds(op) for _ in range(CALLS))

    def captured() -> float:
        with SignatureCapture(store, Plan(1, 1)):
            op()
            return block()

    plain_s, captured_s = map(min, in_turns(block, captured, BLOCKS))  # the least disturbed block
    ratio = captured_s / plain_s
    print(f"  a captured call: {captured_s * 1e6:.1f} us for {plain_s * 1e6:.1f} us")
    print(f"  captured {ratio:.3f} times as long; the bound is {CAPTURED_BOUND}")
    with SignatureCapture(store, Plan(1, 1)):
        op()
        gc.collect()
        objects, memory = len(gc.get_objects()), peak_bytes()
        for _ in range(TOTAL):
            op()
        gc.collect()
        grown, more = len(gc.get_objects()) - objects, peak_bytes() - memory
    print(f"  {TOTAL:,} captured calls: {grown:+} objects, {more / 2**20:+.1f} MiB resident")
    if grown > 100:
        sys.exit("captured calls leave objects behind")
    return ratio > CAPTURED_BOUND


def count(step: Step) -> bool:
    """Count a step, print the time between steps, and return whether the ratio exceeds its bound."""
    between: list[float] = []

    def counted() -> float:
        with StepCounter() as counter:
            step()  # the first step runs through newly installed hooks, as a warm-up step does
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
    ratio = counted_s / plain_s
    print(f"  counted {counted_s * 1e3:.3f} ms for {plain_s * 1e3:.3f} ms; {more}")
    print(f"  counted {ratio:.3f} times as long; the bound is {COUNTED_BOUND}")
    return ratio > COUNTED_BOUND


def watch(step: Step, missing: Step, limits: str | None = None) -> bool:
    """Watch a loop of steps, one of which misses, and return whether a ratio exceeds its bound.

    The ratios are those of all steps, and of the median step, which records nothing.
    """
    lines: list[str] = []
    opening: list[float] = []

    def loop(ended: Step = lambda: None) -> list[float]:
        ends = [time.thread_time()]
        for number in range(1, LOOP_STEPS + 1):
            step()
            if number == MISSING:
                missing()
            ended()
            ends.append(time.thread_time())
        return [end - start for start, end in itertools.pairwise(ends)]

    def watched() -> list[float]:
        lines.clear()
        start = time.thread_time()
        with StepWatch(lines.append, limits) as watch:
            steps = loop(watch.step)
        opening.append(time.thread_time() - start - sum(steps))
        return steps

    loop()
    loops = in_turns(loop, watched, LOOPS)
    plain, other = ([sum(steps) for steps in side] for side in loops)
    found = paired_ratio(plain, other, confidence=0.95)
    assert found
    ratio, low, high = found
    fastest = [[*map(min, zip(*side, strict=True))] for side in loops]  # of each step number
    plain_s, watched_s = map(sum, fastest)
    plain_median_s, watched_median_s = map(statistics.median, fastest)
    median_ratio = watched_median_s / plain_median_s
    step_s = plain_s / LOOP_STEPS
    bound = LONG_WATCHED_BOUND if step_s >= LONG_S else WATCHED_BOUND
    named = [text.split(":")[1].strip() for text in lines if "miss:" in text or "over its limits" in text]
    print(f"  watched {ratio:.3f} ({low:.3f}-{high:.3f}) times as long; the bound is {bound}")
    print(
        f"  undisturbed {watched_s / plain_s:.3f} times: {step_s * 1e3:.2f} ms a step, "
        f"and {(watched_s - plain_s) / LOOP_STEPS * 1e6:.0f} us more watched; "
        f"opening and closing {statistics.median(opening) * 1e3:.1f} ms; misses at {', '.join(named)}"
    )
    more_us = (watched_median_s - plain_median_s) * 1e6
    print(f"  the median step {median_ratio:.3f} times: {more_us:.0f} us more")
    return ratio > bound or median_ratio > bound


class Wrapping(torch.nn.Module):
    """Module that wraps, unwraps and redistributes, with one add."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, local: torch.Tensor) -> torch.Tensor:
        """Return a local tensor, computed from a local tensor."""
        weight = self.weight.redistribute(placements=[Replicate()])
        wrapped: Any = DTensor.from_local(local, weight.device_mesh, [Replicate()]) + weight
        return wrapped.to_local()  # type: ignore[no-any-return]


def prepare(grid: DeviceMesh, line: DeviceMesh) -> tuple[dict[str, Step], dict[str, Step], Step]:
    """Return the counted steps, the watched steps, and an op that misses in each call."""
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
    """Print the ratios of the parts named on the command line, by default of all."""
    torch.set_num_threads(1)
    owner = ProcessGroupOwner()
    grid = owner.mesh(MeshSpec((2, 4), "cpu", "fake"), ("dp", "tp"))
    counted, watched, missing = prepare(grid, owner.mesh(MeshSpec((8,), "cpu", "fake"), ("dp",)))
    parts: dict[str, dict[str, Callable[[], bool]]] = {
        "capturing": {"an op": partial(capture, grid)},
        "counting": {name: partial(count, step) for name, step in counted.items()},
        "watching": {
            f"{name}{title}": partial(watch, step, missing, limits)
            for name, step in watched.items()
            for title, limits in (("", None), (", misses=0", "misses=0"))
        },
    }
    failed = []
    for part in sys.argv[1:] or parts:
        for name, judge in parts[part].items():
            print(f"{part}: {name}")
            failed += [f"{part}: {name}"] * judge()
    print(f"compiled frames: {torch._dynamo.utils.counters['frames']['total']}")
    owner.close()
    print(f"above its bound: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
