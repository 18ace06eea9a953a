"""Which statistic of a miss stays nearest to that of a quiet machine, when the machine is busy?

``python benchmarks/headline.py`` runs a test of four ops in pytest, 30 times on the machine as it is, which
should be quiet, and 30 times beside processes that work in bursts, as many as cores, or ``--per-core`` times
that. ``taskset -c 1`` before it lets all of them share a core. Of each op, state and
statistic the middle of the quiet runs is the truth; printed is how far runs lie from it, in percent: the
middle run and the worst one, of the quiet runs and of the busy ones, and of the busy ones how many lie within
a tenth. Statistics: the median, the lower quartile, the lowest median of neighbouring samples, cut into
blocks, and the least sample. Last it prints how many rows are marked as noisy, by several bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pytest_dtdispatch.core.measurement import NOISY
from pytest_dtdispatch.stats.medians import quietest_block, scatter
from pytest_dtdispatch.stats.resampling import quantile

TEST = """
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

def test_ops(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
    b = distribute_tensor(torch.rand(10, 10), device_mesh, [Replicate()])
    with dtdispatch.capture():
        a + a
        b @ b
        b.sum()
        torch.ops.aten._softmax(b, 0, False)
"""
STATES = ("miss", "hit", "local")
MOST_BURST_S = 0.5
BURSTS = f"""
import random, sys, time
draws = random.Random(int(sys.argv[1]))
while True:
    end = time.perf_counter() + draws.uniform(0.02, {MOST_BURST_S})
    while time.perf_counter() < end:
        sum(range(1000))
    time.sleep(draws.uniform(0.02, {MOST_BURST_S}))
"""
NEAR = 10  # percent
Statistic = Callable[[Sequence[float]], float]
Samples = Mapping[str, Mapping[str, Sequence[float]]]  # seconds, by state and op


STATISTICS: dict[str, Statistic] = {
    "median": statistics.median,
    "lower quartile": partial(quantile, q=0.25),
    "lowest of 4 block medians": partial(quietest_block, blocks=4),
    "lowest of 7 block medians": partial(quietest_block, blocks=7),
    "least": min,
}


@contextmanager
def bursts(count: int) -> Iterator[None]:
    """Keep so many processes working in bursts."""
    working = [subprocess.Popen([sys.executable, "-c", BURSTS, str(seed)]) for seed in range(count)]
    try:
        yield
    finally:
        for process in working:
            process.kill()
            process.wait()


def run(folder: Path) -> Samples:
    """Run the test once, and return its samples."""
    output = folder / "run.json"
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--dtdispatch",
        f"--benchmark-json={output}",
        "test_ops.py",
    )
    # One thread, so that a row tells of dispatch, and not of a thread that waits for a core.
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    samples: dict[str, dict[str, Sequence[float]]] = {state: {} for state in STATES}
    for row in json.loads(output.read_text())["benchmarks"]:
        samples[row["params"]["state"]][row["params"]["op"]] = row["stats"]["data"]
    return samples


def percents_off(
    quiet: Sequence[Samples], runs: Sequence[Samples], state: str, statistic: Statistic
) -> list[float]:
    """Give how far each op of each run lies from the truth."""
    off = []
    for op in quiet[0][state]:
        truth = statistics.median(statistic(samples[state][op]) for samples in quiet)
        off += [100 * abs(statistic(samples[state][op]) / truth - 1) for samples in runs]
    return off


def table(quiet: Sequence[Samples], busy: Sequence[Samples]) -> Iterator[str]:
    """Give a line for each state and statistic, over all ops."""
    heads = ("quiet middle", "quiet worst", "busy middle", "busy worst", f"busy within {NEAR} %")
    yield f"{'state':8}{'statistic':28}" + "".join(head.rjust(18) for head in heads)
    for state in STATES:
        for name, statistic in STATISTICS.items():
            at_rest = percents_off(quiet, quiet, state, statistic)
            under_load = percents_off(quiet, busy, state, statistic)
            figures = (
                statistics.median(at_rest),
                max(at_rest),
                statistics.median(under_load),
                max(under_load),
            )
            texts = [f"{figure:.1f} %" for figure in figures]
            near = f"{sum(off <= NEAR for off in under_load)} of {len(under_load)}"
            yield f"{state:8}{name:28}" + "".join(text.rjust(18) for text in (*texts, near))


def marks(quiet: Sequence[Samples], busy: Sequence[Samples]) -> Iterator[str]:
    """Give a line for each bound: how many rows have a state that scatters by more."""
    for bound in (NOISY / 2, NOISY * 0.75, NOISY, NOISY * 1.25):
        found = []
        for runs in (quiet, busy):
            rows = [[samples[state][op] for state in STATES] for samples in runs for op in samples["miss"]]
            noisy = sum(any((scatter(values) or 0) > bound for values in row) for row in rows)
            found.append(f"{noisy} of {len(rows)}")
        yield f"noisy past {bound:.0%}: {found[0]} quiet rows, {found[1]} busy ones"


def main() -> None:
    """Take both kinds of runs, by turns, and print the table."""
    parser = argparse.ArgumentParser(description="Compare statistics of runs on a quiet and a busy machine.")
    parser.add_argument("--runs", type=int, default=30, help="runs of each kind (default: 30)")
    parser.add_argument("--per-core", type=int, default=1, help="processes in bursts for each core")
    parser.add_argument("--keep", type=Path, help="a file for all samples")
    given = parser.parse_args()
    quiet: list[Samples] = []
    busy: list[Samples] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_ops.py").write_text(TEST)
        for _ in range(given.runs):
            time.sleep(1)  # until the bursts of the last run are over for the kernel too
            quiet.append(run(folder))
            with bursts(given.per_core * len(os.sched_getaffinity(0))):
                busy.append(run(folder))
    if given.keep:
        given.keep.write_text(json.dumps({"quiet": quiet, "busy": busy}))
    print(*table(quiet, busy), *marks(quiet, busy), sep="\n")


if __name__ == "__main__":
    main()
