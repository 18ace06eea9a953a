"""How often each gate fails a clean run, and finds what was put in: ``python benchmarks/gates.py``.

A project of two tests is made in a temporary repository of three commits: *clean*; *slower*, whose call
makes thirteen adds in place of ten (+30 %); and *miss*, whose step has one cache miss too many. Each gate
judges the clean commit N times, and what it can see of the others N times, always as a command with its
exit status. ``--runs counters=20,ab=3`` sets N, and names the gates that are run; by default all are. The
load of the machine is printed, as the figures of gates on times hang on it.
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
    """A way to judge a commit.

    Args:
        runs: how often each commit is judged.
        faults: the commits with a fault that it can see.
        command: what judges the commit that is checked out; ``REV`` stands for its name.
        prepare: commands that make its baseline, on the clean commit.
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
    """Judge, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", default="", help="NAME=N,NAME=N")
    asked = dict(part.split("=") for part in parser.parse_args().runs.split(",") if part)
    print(f"torch {torch.__version__}; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder))
        for name, gate in GATES.items():
            if not asked or name in asked:
                judge(name, gate, Path(folder), int(asked.get(name, gate.runs)))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def make_project(folder: Path) -> None:
    """Make the repository: each fault is a commit of its own upon the clean one, and a tag."""
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
    """Run what must not fail."""
    ran = run_in(command, folder)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}: {ran.returncode}\n{ran.stdout}{ran.stderr}")


def run_in(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def judge(name: str, gate: Gate, folder: Path, runs: int) -> None:
    """Let a gate judge each commit as often as asked, and print what it said."""
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
    """Say how many runs failed, of how many, and between what bounds the rate is with 95 %."""
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
