"""Measure how often ``dtdispatch.compare`` distinguishes two functions that are equal, or that differ.

``python benchmarks/compare.py`` compares two equal functions 200 times, each with ten adds of its own
DTensor, and 100 times a function of ten adds with one of eleven, which takes 10 % longer. ``--steps N`` also
compares N steps of about 50 ms with equal ones, and N with steps of 6 % less work. It prints the outcomes,
the range of the ratios, and the load of the machine. ``--equal N`` and ``--slower N`` set the numbers of
comparisons, ``--max-time S`` the maximum time of each function in a comparison. ``--simulated N`` judges N
comparisons of drawn samples instead: how often an interval misses the true ratio, and a gain is confirmed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from pytest_dtdispatch.comparing.measure import run_and_measure_variants, trimmed_mean
from pytest_dtdispatch.comparing.model import Outcome, Ratio, Variants, ratio_after
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.stats.intervals import LOOKS
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

ADDS = 10


def adds(mesh: torch.distributed.device_mesh.DeviceMesh, count: int) -> Callable[[], None]:
    """Return a function that runs ``count`` adds on its own tensor."""
    a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def run() -> None:
        for _ in range(count):
            a + a

    return run


def step_of(mesh: torch.distributed.device_mesh.DeviceMesh, units: int) -> Callable[[], None]:
    """Return a step of several layers, each with a product, an activation and a residual."""
    x: Any = distribute_tensor(torch.rand(32, 64), mesh, [Shard(0)])
    w: Any = distribute_tensor(torch.rand(64, 64) / 64, mesh, [Replicate()])

    def run() -> None:
        y = x
        for _ in range(units):
            y = x + torch.relu(y @ w)

    return run


def units_of(mesh: torch.distributed.device_mesh.DeviceMesh, step_s: float = 0.05) -> int:
    """Return the number of units, a multiple of 50, of a step that takes about as long as requested."""
    run, times = step_of(mesh, 50), list[float]()
    for _ in range(10):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 50 * max(round(step_s / min(times)), 1)


def compared(first: Callable[[], None], other: Callable[[], None], plan: Plan) -> Ratio:
    """Compare two functions, and return the ratio of their times."""
    variants = Variants("it", {"first": first, "other": other})
    found = run_and_measure_variants(variants, ShardingCaches(), plan)
    ratio = found["other"].ratio_to("first")
    assert ratio is not None
    return ratio


def report(title: str, ratios: list[Ratio], spent_s: float) -> None:
    """Print outcomes and ratios."""
    outcomes = Counter(ratio.outcome() for ratio in ratios)
    middle = statistics.median(ratio.ratio for ratio in ratios)
    least, most = (f(ratio.ratio for ratio in ratios) for f in (min, max))
    margin = statistics.median(ratio.margin for ratio in ratios)
    rounds = statistics.median(ratio.rounds for ratio in ratios)
    print(f"{title}: {len(ratios)} runs: {', '.join(f'{word} {count}' for word, count in outcomes.items())}")
    print(f"  ratio {middle:.3f} ({least:.3f} to {most:.3f}), +-{margin:.1%} in {rounds:g} rounds")
    print(f"  {spent_s / len(ratios):.1f} s each", flush=True)


NOISES: dict[str, Callable[[random.Random, float], float]] = {
    "normal": lambda draw, at: 1.0,
    "drift": lambda draw, at: 1 + 0.3 * math.sin(at),
    "heavy tails": lambda draw, at: 1 + (draw.paretovariate(1.5) * 0.3 if draw.random() < 0.1 else 0),
    "slow phases": lambda draw, at: 1.5 if math.sin(40 * at) > 0.7 else 1.0,
}


def simulate(count: int, calls: int = 3, most: int = 50) -> None:
    """Print the error rates of the rule on samples with a deviation of 5 % and further noise."""
    for title, noise in NOISES.items():
        draw, missed, confirmed, wrong = random.Random(0), 0, 0, 0
        for number in range(2 * count):
            is_gain = number % 2 == 1
            true = 0.94 if is_gain else 1.0
            sides: tuple[list[int], list[int]] = ([], [])
            found = None
            for rounds in range(1, most + 1):
                for turn, side in enumerate((0, 1) if rounds % 2 else (1, 0)):
                    factor, at = (1.0, true)[side], (2 * rounds + turn) / 8 + number
                    block = [draw.gauss(1, 0.05) * noise(draw, at + n / 50) for n in range(calls)]
                    sides[side].append(trimmed_mean([round(5e7 * factor * each) for each in block]))
                if LOOKS * rounds // most > LOOKS * (rounds - 1) // most:
                    found = ratio_after(rounds / most, *sides)
                    if found and found.is_decided:
                        break
            assert found
            missed += not found.low <= true <= found.high
            confirmed += is_gain and found.outcome() is Outcome.FASTER
            wrong += found.outcome() not in ((Outcome.FASTER,) if is_gain else ()) + (Outcome.NOT_APART,)
        print(
            f"{title}: of {count} gains of 6 %, {confirmed} confirmed; of {2 * count} intervals, {missed} "
            f"without the true ratio; {wrong} wrong outcomes",
            flush=True,
        )


def main() -> None:
    """Compare functions, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for flag, number in (("--equal", 200), ("--slower", 100), ("--steps", 0), ("--simulated", 0)):
        parser.add_argument(flag, type=int, default=number)
    parser.add_argument("--max-time", type=float, default=1.0)
    options = parser.parse_args()
    if options.simulated:
        simulate(options.simulated)
        return
    torch.set_num_threads(1)
    mesh = ProcessGroupOwner().mesh(MeshSpec((4,), "cpu", "fake"))
    plan, units = Plan(max_time_s=options.max_time), units_of(mesh) if options.steps else 50
    runs = (
        ("equal", options.equal, adds, ADDS, ADDS),
        ("10 % slower", options.slower, adds, ADDS, ADDS + 1),
        (f"equal steps of {units} units", options.steps, step_of, units, units),
        ("steps with 6 % less work", options.steps, step_of, units, units * 47 // 50),
    )
    for title, times, build, count, other in runs:
        if times:
            began = time.perf_counter()
            ratios = [compared(build(mesh, count), build(mesh, other), plan) for _ in range(times)]
            report(title, ratios, time.perf_counter() - began)
    print(
        f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
