"""Measure how often each gate fails a clean run and detects a fault: ``python benchmarks/gates.py``.

A project of two tests is created in a temporary repository with three commits: *clean*; *slower*, whose call
runs thirteen adds instead of ten (+30 %); and *miss*, whose step has an additional cache miss. Each gate
judges the clean commit N times, and each fault that it can detect N times, as a command with an exit status.
``--runs counters=20,ab=3`` sets N and selects the gates; by default all of them run. The load of the machine
is printed, because the rates of gates on times depend on it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import binomtest

CLEAN, SLOWER, MISS = "clean", "slower", "miss"
FAULTS = {CLEAN: "ADDS, MISSES = 10, 0", SLOWER: "ADDS, MISSES = 13, 0", MISS: "ADDS, MISSES = 10, 1"}
PROJECT = """
    import fault
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor


    def split(mesh, columns):
        return distribute_tensor(torch.ones(8, columns), mesh, [Shard(0)])


    def test_step(dtdispatch, device_mesh):
        steady, fresh = split(device_mesh, 8), [split(device_mesh, 16 + number) for number in range(9)]

        def step():
            steady + steady
            for _ in range(fault.MISSES):
                other = fresh.pop()
                other + other

        dtdispatch.steps(step, name="counted")


    def test_call(dtdispatch, device_mesh):
        steady = split(device_mesh, 8)

        def adds():
            for _ in range(fault.ADDS):
                steady + steady

        dtdispatch.call(adds, name="timed")
"""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dtdispatch", "--benchmark-quiet")
OURS = (sys.executable, "-m", "pytest_dtdispatch")
COUNTED, TIMED = ("-k", "step"), ("-k", "call")
INSTRUCTIONS = ("--dtdispatch-metric", "instructions")
UPDATE = (*OURS, "expected", "update", "--reason", "measured")


@dataclass(frozen=True)
class Gate:
    """Commands that judge a commit.

    Args:
        runs: number of times that each commit is judged.
        faults: commits with a fault that the gate can detect.
        command: judges the commit that is checked out; ``REV`` is replaced by its name.
        prepare: commands that create the baseline, on the clean commit.
    """

    runs: int
    faults: tuple[str, ...]
    command: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()


GATES: Mapping[str, Gate] = {
    "counters": Gate(20, (MISS, SLOWER), (*PYTEST, *COUNTED, "--dtdispatch-max", "misses=0")),
    "expected": Gate(
        20,
        (MISS, SLOWER),
        (*PYTEST, *COUNTED, "--dtdispatch-expected", "counts.csv"),
        (
            (*PYTEST, *COUNTED, "--dtdispatch-export", "csv:results.csv"),
            (*UPDATE, "counts.csv", "--results", "results.csv", "--new-margin", "0"),
        ),
    ),
    "saved": Gate(
        20,
        (SLOWER,),
        (*PYTEST, *TIMED, "--benchmark-compare=0001", "--dtdispatch-fail", "median:20%"),
        ((*PYTEST, *TIMED, "--benchmark-save=base"),),
    ),
    "instructions": Gate(
        5,
        (SLOWER,),
        (*PYTEST, *TIMED, *INSTRUCTIONS, "--dtdispatch-expected", "instructions.csv"),
        (
            (*PYTEST, *TIMED, *INSTRUCTIONS, "--dtdispatch-export", "csv:results.csv"),
            (*UPDATE, "instructions.csv", "--results", "results.csv", "--new-margin", "0.02"),
        ),
    ),
    "ab": Gate(
        5,
        (SLOWER,),
        (*OURS, "ab", "--base-rev", CLEAN, "--head-rev", "REV", "--", "test_gate.py", *TIMED),
    ),
}


def main() -> None:
    """Run the gates, and print their rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", default="", help="NAME=N,NAME=N")
    runs = dict(part.split("=") for part in parser.parse_args().runs.split(",") if part)
    print(f"torch {torch.__version__}; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder))
        for name, gate in GATES.items():
            if not runs or name in runs:
                judge(name, gate, Path(folder), int(runs.get(name, gate.runs)))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def make_project(folder: Path) -> None:
    """Create the repository, with a commit and a tag for each fault."""
    (folder / "test_gate.py").write_text(textwrap.dedent(PROJECT).lstrip())
    (folder / ".gitignore").write_text("*.csv\n.benchmarks\n__pycache__\n")
    run_or_stop(("git", "init", "-q"), folder)
    for name, text in FAULTS.items():
        (folder / "fault.py").write_text(f"{text}\n")
        run_or_stop(("git", "add", "-A"), folder)
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        run_or_stop(("git", *who, "commit", "-q", "-m", name), folder)
        run_or_stop(("git", "tag", name), folder)


def run_or_stop(command: Sequence[str], folder: Path) -> None:
    """Run a command, and exit if it fails."""
    ran = run_in(command, folder)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}{ran.stderr}")


def run_in(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, and capture its output."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def judge(name: str, gate: Gate, folder: Path, runs: int) -> None:
    """Judge each commit ``runs`` times, and print the rates."""
    run_or_stop(("git", "checkout", "-q", CLEAN), folder)
    for command in gate.prepare:
        run_or_stop(command, folder)
    for commit in (CLEAN, *gate.faults):
        run_or_stop(("git", "checkout", "-q", commit), folder)
        judging = [commit if word == "REV" else word for word in gate.command]
        statuses, seconds = Counter[int](), list[float]()
        for _ in range(runs):
            began = time.perf_counter()
            statuses[run_in(judging, folder).returncode] += 1
            seconds.append(time.perf_counter() - began)
        print(line_of(name, commit, statuses, seconds), flush=True)


def line_of(name: str, commit: str, statuses: Counter[int], seconds: Sequence[float]) -> str:
    """Format the number of failed runs, with the 95 % interval of the rate."""
    runs, failed = statuses.total(), statuses[1]
    low, high = binomtest(failed, runs).proportion_ci()
    others = {status: count for status, count in sorted(statuses.items()) if status > 1}
    more = "".join(f"; exit status {status}: {count}" for status, count in others.items())
    return (
        f"{name:12} {commit:6} failed {failed} of {runs} (95 %: {100 * low:.0f} to {100 * high:.0f} %), "
        f"{statistics.median(seconds):.1f} s a run{more}"
    )


if __name__ == "__main__":
    main()
