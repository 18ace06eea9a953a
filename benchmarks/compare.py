"""Measure how often ``dtdispatch.compare`` distinguishes two functions that are equal, or that differ.

``python benchmarks/compare.py`` compares two equal functions 200 times, each with ten adds of its own
DTensor, and 100 times a function of ten adds with one of eleven, which takes 10 % longer. It prints the
outcomes, the range of the ratios, and the load of the machine. ``--equal N`` and ``--slower N`` set the
numbers of comparisons, ``--max-time S`` the maximum time of each function in a comparison.
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
    """Return a function that runs ``count`` adds on its own tensor."""
    a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def run() -> None:
        for _ in range(count):
            a + a

    return run


def compared(first: Callable[[], None], other: Callable[[], None], plan: Plan) -> Ratio:
    """Compare two functions, and return the ratio of their times."""
    variants = Variants("it", {"first": first, "other": other})
    found = run_and_measure_variants(variants, ShardingCaches(), plan)
    ratio = found["other"].ratio_to("first")
    assert ratio is not None
    return ratio


def report(title: str, ratios: list[Ratio]) -> None:
    """Print outcomes and ratios."""
    outcomes = Counter(ratio.outcome() for ratio in ratios)
    middle = statistics.median(ratio.ratio for ratio in ratios)
    least, most = (f(ratio.ratio for ratio in ratios) for f in (min, max))
    width = statistics.median(ratio.high - ratio.low for ratio in ratios)
    print(f"{title}: {len(ratios)} runs: {', '.join(f'{word} {count}' for word, count in outcomes.items())}")
    print(f"  ratio {middle:.3f} ({least:.3f} to {most:.3f}), width of the interval {width:.3f}")


def main() -> None:
    """Compare functions, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--equal", type=int, default=200)
    parser.add_argument("--slower", type=int, default=100)
    parser.add_argument("--max-time", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    mesh = ProcessGroupOwner().mesh(MeshSpec((4,), "cpu", "fake"))
    plan = Plan(max_time_s=options.max_time)
    for title, count, times in (("equal", ADDS, options.equal), ("10 % slower", ADDS + 1, options.slower)):
        if times:
            report(title, [compared(adds(mesh, ADDS), adds(mesh, count), plan) for _ in range(times)])
    print(
        f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
