"""How often ``dtdispatch.compare`` tells two functions apart that are equal, and such as are not.

``python benchmarks/compare.py`` compares two equal functions 200 times, each of ten adds of a DTensor of its
own, and 100 times one of ten adds with one of eleven, which takes 10 % more. It prints how often they were
told apart, the range of the ratios, and the load of the machine. ``--equal N`` and ``--slower N`` say how
often, ``--max-time S`` how long each function may run in a comparison.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import Counter
from collections.abc import Callable

import torch
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Ratio, Variants
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

ADDS = 10


def adds(mesh: torch.distributed.device_mesh.DeviceMesh, count: int) -> Callable[[], None]:
    """Make a function of so many adds, on a tensor of its own."""
    a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def run() -> None:
        for _ in range(count):
            a + a

    return run


def compared(first: Callable[[], None], other: Callable[[], None], plan: Plan) -> Ratio:
    """Compare two functions, and give how many times as long the other takes."""
    asked = Variants("it", {"first": first, "other": other})
    found = run_and_measure_variants(asked, ShardingCaches(), plan)
    ratio = found["other"].ratio_to("first")
    assert ratio is not None
    return ratio


def report(title: str, ratios: list[Ratio]) -> None:
    """Print how often they were told apart."""
    told = Counter(ratio.outcome() for ratio in ratios)
    middle = statistics.median(ratio.ratio for ratio in ratios)
    least, most = (f(ratio.ratio for ratio in ratios) for f in (min, max))
    width = statistics.median(ratio.high - ratio.low for ratio in ratios)
    print(f"{title}: {len(ratios)} runs: {', '.join(f'{word} {count}' for word, count in told.items())}")
    print(f"  ratio {middle:.3f} ({least:.3f} to {most:.3f}), width of the interval {width:.3f}")


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--equal", type=int, default=200)
    parser.add_argument("--slower", type=int, default=100)
    parser.add_argument("--max-time", type=float, default=1.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    mesh = ProcessGroupOwner().mesh(MeshSpec((4,), "cpu", "fake"))
    plan = Plan(max_time_s=asked.max_time)
    for title, count, times in (("equal", ADDS, asked.equal), ("10 % slower", ADDS + 1, asked.slower)):
        if times:
            report(title, [compared(adds(mesh, ADDS), adds(mesh, count), plan) for _ in range(times)])
    print(
        f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
