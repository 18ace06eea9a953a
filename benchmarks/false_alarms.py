"""Measure the error rates of gates on times: ``python benchmarks/false_alarms.py --runs 4``.

By default ``dtdispatch ab`` compares one interpreter with itself, so each row with the verdict regressed or
improved is a false alarm. Arguments after ``--`` are passed to ``dtdispatch ab``: flags of its rule, or
another ``--`` and tests.

With ``--gate saved`` a program of 27 rows is judged 20 times against a saved run of itself, at ``20%``
(``gate_rules.py`` has the rates of the rule itself). Each run that fails is a false alarm. With ``--fault
hit`` or ``--fault rule`` a hit, or a sharding rule, works longer by 30 % of the saved figure, and the gate
misses the fault in each run in which that row is not regressed. ``--loops`` busy loops run beside each judged
or A/B run, ``--base-loops`` beside the saved run. ``--ungated`` also times two runs that write no file after
each judged run, with the gate and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scipy.stats import binomtest

from pytest_dtdispatch.core.verdicts import over
from pytest_dtdispatch.report.judgements import change_text
from pytest_dtdispatch.report.run import read_run

WITHOUT_VERDICTS = (2, 5, 130)  # exit statuses of a run that has no verdicts
SHOWN = ("regressed", "improved", "inconclusive", "contaminated")
PROGRAM = """
    import os
    import time

    import torch
    import torch.nn.functional as F
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    FAULT, _, EXTRA_NS = os.environ.get("FAULT", "").partition("=")


    def slow_down(fault):
        end = time.thread_time_ns() + int(EXTRA_NS or 0) * (FAULT == fault)
        while time.thread_time_ns() < end:
            pass


    RULES = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    CUMSUM = torch.ops.aten.cumsum.default


    def slow_rule(schema, rule=RULES[CUMSUM]):
        slow_down("rule")
        return rule(schema)


    RULES[CUMSUM] = slow_rule


    def split(mesh):
        return distribute_tensor(torch.ones(16, 16), mesh, [Shard(0)])


    def test_calls(dtdispatch, device_mesh):
        a = split(device_mesh)

        def four_ops():
            slow_down("hit")
            return a + a + a + a + a

        calls = {
            "four ops": four_ops,
            "relu": lambda: (a * a).relu(),
            "sum": lambda: a.sum(1),
            "softmax": lambda: F.softmax(a, 1),
            "layer norm": lambda: F.layer_norm(a, (16,)),
            "cat": lambda: torch.cat([a, a], 1),
            "twice t": lambda: a.t().t(),
            "plain": lambda: torch.ones(64) + 1,
        }
        for name, call in calls.items():
            dtdispatch.call(call, name=name)


    def test_ops(dtdispatch, device_mesh):
        a = split(device_mesh)
        with dtdispatch.capture():
            a + a, a * a, a.neg(), a.exp(), a.t(), a.cumsum(1)


    def test_steps(dtdispatch, device_mesh):
        a = split(device_mesh)
        dtdispatch.steps(lambda: (a + a).relu(), name="steps")
"""
SLOWED = {"hit": "::four ops::hit", "rule": "::cumsum.default(f32[16,16]S0, dim=1)@4::miss"}
SLOWER_BY = 0.3
MEASURE = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--dtdispatch",
    "--benchmark-quiet",
)
COMPARE = (*MEASURE, "--benchmark-compare=0001", "--dtdispatch-fail=20%")
BUSY = (sys.executable, "-c", "while True: pass")


def main() -> None:
    """Run the gate, and print its rates with their intervals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gate", choices=("ab", "saved"), default="ab")
    parser.add_argument("--runs", type=int, help="default: 4 A/B runs, 20 judged ones")
    parser.add_argument("--python", default=sys.executable, help="of dtdispatch ab")
    parser.add_argument("--fault", choices=SLOWED)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--base-loops", type=int, default=0)
    parser.add_argument("--ungated", action="store_true")
    parser.add_argument("words", nargs="*", help="of dtdispatch ab")
    options = parser.parse_args()
    options.runs = options.runs or {"ab": 4, "saved": 20}[options.gate]
    if options.gate == "saved":
        judge_saved_run(options)
    else:
        judge_ab(options)


def judge_ab(options: argparse.Namespace) -> None:
    """Count the verdicts of rows in A/B runs of one interpreter."""
    verdicts: Counter[str] = Counter()
    processes = 0
    for number in range(1, options.runs + 1):
        with busy_loops(options.loops):
            found, count = run_ab(options.python, options.words)
        verdicts += found
        processes += count
        print(f"run {number}: {', '.join(f'{count} {name}' for name, count in found.items())}", flush=True)
    print(f"{processes} processes in {options.runs} runs")
    rows = verdicts.total()
    for name in SHOWN:
        print(f"{name}: {rate_text(verdicts[name], rows)}")


def rate_text(count: int, total: int) -> str:
    """Format a rate with its interval by Clopper and Pearson."""
    low, high = binomtest(count, total).proportion_ci()
    return f"{count} of {total}, 95 % interval {low:.2%} to {high:.2%}"


def run_ab(python: str, words: list[str]) -> tuple[Counter[str], int]:
    """Compare an interpreter with itself; return the number of each verdict, and of processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ab.json"
        saved = Path(folder) / "saved"
        sides = ["--base", python, "--head", python, "--json", str(path), "--keep", str(saved)]
        command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides, *words]
        status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
        if status in WITHOUT_VERDICTS:
            sys.exit(f"dtdispatch ab ended with {status}")
        [gate] = json.loads(path.read_text())["gates"]
        return Counter(one["verdict"] for one in gate["verdicts"]), len([*saved.glob("*/*.json")])


def judge_saved_run(options: argparse.Namespace) -> None:
    """Judge the program against a saved run of itself, and print each run and the rates."""
    statuses, slowed = Counter[int](), Counter[str]()
    judged, gated, ungated = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_program.py").write_text(textwrap.dedent(PROGRAM))
        with busy_loops(options.base_loops):
            run_pytest((*MEASURE, "--benchmark-save=base"), folder)
        fault = fault_of(options.fault, folder) if options.fault else ""
        for number in range(1, options.runs + 1):
            with busy_loops(options.loops):
                command = (*COMPARE, "--benchmark-json=run.json")
                status, seconds = run_pytest(command, folder, fault)
                if options.ungated:
                    gated.append(run_pytest(COMPARE, folder, fault)[1])
                    ungated.append(run_pytest(MEASURE, folder, fault)[1])
            rows = [row for gate in read_run(Path(folder) / "run.json").gates for row in gate.verdicts]
            statuses[status] += 1
            judged.append(seconds)
            of_fault = [row for row in rows if options.fault and str(row.row).endswith(SLOWED[options.fault])]
            slowed.update(str(row.verdict) for row in of_fault)
            failing = [row for row in over(rows) if row not in of_fault]
            counts = Counter(str(row.verdict) for row in rows)
            found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            print(f"run {number}: status {status}, {seconds:.1f} s, {found}", flush=True)
            for row in (*of_fault, *failing):
                print("  ", row.verdict, row.row, change_text(row), *row.details, row.remedy, flush=True)
    print(f"failed: {rate_text(statuses[1], options.runs)}; {statistics.median(judged):.1f} s a run")
    for verdict, count in slowed.items():
        print(f"slowed row {verdict}: {rate_text(count, options.runs)}")
    if ungated:
        with_gate, without = statistics.median(gated), statistics.median(ungated)
        print(
            f"{with_gate:.1f} s with a gate, {without:.1f} s without: {with_gate / without:.2f} times as long"
        )


def run_pytest(command: Sequence[str], folder: str, fault: str = "") -> tuple[int, float]:
    """Run the program; return the exit status and how long it took."""
    began = time.perf_counter()
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, "FAULT": fault}, check=False, capture_output=True, text=True
    )
    if ran.returncode not in (0, 1) or "3 passed" not in ran.stdout:
        sys.exit(f"pytest ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.returncode, time.perf_counter() - began


def fault_of(kind: str, folder: str) -> str:
    """Return the fault that slows a row of the saved run by 30 % of its figure."""
    [path] = Path(folder, ".benchmarks").rglob("0001_base.json")
    rows = json.loads(path.read_text())["benchmarks"]
    [ns] = [row["extra_info"]["figure_ns"] for row in rows if row["fullname"].endswith(SLOWED[kind])]
    print(f"{SLOWED[kind]}: {ns / 1000:.1f} us, slower by {SLOWER_BY:.0%}")
    return f"{kind}={round(ns * SLOWER_BY)}"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run busy loops in processes of their own."""
    loops = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
