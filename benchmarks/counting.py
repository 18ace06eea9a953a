"""What counting costs: a training step while it is counted, over the same step uncounted.

Both run in turn, in one process and one run. The ratio is what the step itself takes; what counting does
between two steps (collecting garbage, reading counters) is printed beside it, and is no part of any step.

    python benchmarks/counting.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_step

BOUND = 1.5
BLOCKS, STEPS, TIMES = 13, 5, 41


def seconds(step: Callable[[], Any]) -> float:
    """Time one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def cost(step: Callable[[], Any]) -> tuple[float, float, float]:
    """Return the median seconds of a step uncounted and counted, and those spent between two steps."""
    for _ in range(5):
        step()
    plain, counted, between = [], [], []
    for _ in range(TIMES):
        plain.append(seconds(step))
        with StepCounter() as counter:
            step()  # the first one meets hooks that were just put in place: that is the warm-up's
            counter.lap()
            counted.append(seconds(step))
            between.append(seconds(counter.lap))
    return statistics.median(plain), statistics.median(counted), statistics.median(between)


def whole(step: Callable[[], Any]) -> float:
    """Return the ratio of ``dtdispatch.steps``, all that it does, to as many uncounted steps."""
    ratios = []
    for _ in range(5):
        plain = seconds(lambda: [step() for _ in range(3 + STEPS)])
        ratios.append(seconds(lambda: run_and_count(StepCalls("step", step, 3, STEPS))) / plain)
    return statistics.median(ratios)


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


def main() -> None:
    """Print a line for each step."""
    torch.set_num_threads(1)
    owner = ProcessGroupOwner()
    grid = owner.mesh(Place((2, 4), "cpu", "fake"), ("dp", "tp"))
    line = owner.mesh(Place((8,), "cpu", "fake"), ("dp",))
    blocks = [tensor_parallel_step(grid) for _ in range(BLOCKS)]
    one_block = blocks[0]
    rows = iter(range(4, 10**9))

    def missing() -> None:
        one_block()
        a = DTensor.from_local(torch.rand(next(rows), 8), grid, [Shard(0), Replicate()])
        a + a

    local, weight = torch.rand(8, 8), DTensor.from_local(torch.rand(1, 8), line, [Shard(0)])
    layers = torch.nn.Sequential(*(Wrapping(weight.requires_grad_()) for _ in range(5)))

    steps: dict[str, Callable[[], Any]] = {
        "FSDP2, AdamW": fsdp_training_step(line),
        "tensor parallel": one_block,
        f"{BLOCKS} tensor parallel blocks": lambda: [block() for block in blocks],
        "tensor parallel, 1 miss": missing,
        "wraps and redistributions": lambda: layers(local).sum().backward(),
    }
    columns = ("calls", "step ms", "counted", "ratio", "between ms", "steps() ratio")
    print(f"{'step':28}" + "".join(f"{column:>14}" for column in columns))
    worst = 0.0
    for name, step in steps.items():
        plain, counted, between = cost(step)
        calls = run_and_count(StepCalls(name, step, 0, 1)).calls
        worst = max(worst, counted / plain)
        print(
            f"{name:28}{calls:14}{plain * 1e3:14.3f}{counted * 1e3:14.3f}{counted / plain:14.3f}"
            f"{between * 1e3:14.3f}{whole(step):14.3f}"
        )
    print(f"the worst step takes {worst:.3f} times as long while it is counted; the bound is {BOUND}")
    owner.close()


if __name__ == "__main__":
    main()
