"""What watching costs: loops of training steps with a StepWatch, and without one.

Both kinds of loop run in turn, in one process. A loop with a watch takes in that it is opened and closed. One
step of each loop misses, by an input of a new shape.

    python benchmarks/watch.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_mlp, tensor_parallel_step

BOUND = 1.1
LOOPS, STEPS, MISSING, BLOCKS = 9, 300, 150, 4
Step = Callable[[], Any]


def op_that_misses(mesh: DeviceMesh) -> Step:
    """Prepare an op that misses whenever it is called: its shape is new."""
    rows = iter(range(4, 10**9))

    def add() -> None:
        a = DTensor.from_local(torch.rand(next(rows), 8), mesh, [Shard(0), Replicate()])
        a + a

    return add


def loop(step: Step, missing: Step, ended: Step) -> float:
    """Run the steps; return what they took."""
    began = time.perf_counter()
    for number in range(1, STEPS + 1):
        step()
        if number == MISSING:
            missing()
        ended()
    return time.perf_counter() - began


def watched(step: Step, missing: Step, lines: list[str]) -> float:
    """Run them with a watch; return what they and the watch took."""
    began = time.perf_counter()
    with StepWatch(lines.append) as watch:
        loop(step, missing, watch.step)
    return time.perf_counter() - began


def compare(step: Step, missing: Step) -> tuple[list[float], list[float], list[str]]:
    """Run loops of both kinds by turns, each first in every second pair; return seconds and lines."""
    plain: list[float] = []
    with_watch: list[float] = []
    lines: list[str] = []

    def run_plain() -> None:
        plain.append(loop(step, missing, lambda: None))

    def run_watched() -> None:
        lines.clear()
        with_watch.append(watched(step, missing, lines))

    loop(step, missing, lambda: None)
    for number in range(LOOPS):
        for run in (run_plain, run_watched)[:: -1 if number % 2 else 1]:
            run()
    return plain, with_watch, lines


def main() -> None:
    """Print a line for each step."""
    torch.set_num_threads(1)
    owner = ProcessGroupOwner()
    grid = owner.mesh(Place((2, 4), "cpu", "fake"), ("dp", "tp"))
    line = owner.mesh(Place((8,), "cpu", "fake"), ("dp",))
    blocks = [tensor_parallel_step(grid) for _ in range(BLOCKS)]
    mlp, batch = tensor_parallel_mlp(grid)
    compiled = torch.compile(mlp, backend="aot_eager")
    steps: dict[str, Step] = {
        "tensor parallel": blocks[0],
        f"{BLOCKS} tensor parallel blocks": lambda: [block() for block in blocks],
        "FSDP2, AdamW": fsdp_training_step(line),
        "8 compiled forward passes": lambda: [compiled(batch) for _ in range(8)],
    }
    columns = ("step ms", "ratio", "pairs", "misses at")
    print(f"{'step':28}" + "".join(f"{column:>16}" for column in columns))
    worst, missing = 0.0, op_that_misses(grid)
    for name, step in steps.items():
        plain, with_watch, lines = compare(step, missing)
        ratio = statistics.median(with_watch) / statistics.median(plain)
        pairs = sorted(one / other for one, other in zip(with_watch, plain, strict=True))
        named = [text.split(":")[1].strip() for text in lines if "miss:" in text]
        print(
            f"{name:28}{statistics.median(plain) / STEPS * 1e3:16.3f}{ratio:16.3f}"
            f"{f'{pairs[0]:.3f}-{pairs[-1]:.3f}':>16}{', '.join(named):>16}"
        )
        worst = max(worst, ratio)
    print(f"frames that were compiled: {torch._dynamo.utils.counters['frames']['total']}")
    print(f"the worst loop takes {worst:.3f} times as long while it is watched; the bound is {BOUND}")
    owner.close()


if __name__ == "__main__":
    main()
