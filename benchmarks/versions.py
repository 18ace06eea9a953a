"""Print tables of the changes between versions of torch, which ``docs/suite.md`` summarizes.

``python benchmarks/versions.py OLD/bin/python NEW/bin/python ...`` compares each interpreter with the one
before it, by ``dtdispatch ab`` over the ops of ``suite.ab_ops``. It prints times of hits and misses, with an
arrow if a row changed. Two interpreters take two minutes. Arguments after ``--`` are
passed to ``dtdispatch ab``.

A third table has a step of 16 FSDP2 groups that only hits: the median of processes that alternate between
the interpreters, of the measured time. With one interpreter it is the only
table with rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ARROWS = {"improved": " ↓", "regressed": " ↑"}
USUAL_MESH = "4"
STEP, STEP_PROCESSES = "test_fsdp2_hooks_budget", 5
NO_VERDICTS = (2, 5, 130)  # exit statuses of a run without verdicts
Cells = dict[tuple[str, str], dict[str, str]]  # by op and state, then by version


def version_of(python: str) -> str:
    """Return the version of an interpreter's torch, without its build."""
    code = "import torch; print(torch.__version__.partition('+')[0])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def compare(base: str, head: str, flags: Sequence[str]) -> list[Mapping[str, Any]]:
    """Compare two interpreters without a control, since builds of torch differ; return the verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ab.json")
        sides = ["--base", base, "--head", head, "--control", "off", "--json", str(path)]
        command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides, *flags]
        status = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        if status in NO_VERDICTS:
            sys.exit(f"dtdispatch ab ended with {status}")
        verdicts: list[Mapping[str, Any]] = json.loads(path.read_text())["gates"][0]["verdicts"]
        return verdicts


def op_of(label: str) -> str:
    """Return the op of a row, with its mesh unless that is 4 ranks.

    Example:
        >>> op_of("add.Tensor(f32[16,8]S0, f32[16,8]S0)@2x2")
        'add @2x2'
    """
    op, mesh = label.partition(".")[0], label.rpartition("@")[2]
    return op if mesh == USUAL_MESH else f"{op} @{mesh}"


def add_verdicts(cells: Cells, base: str, head: str, verdicts: Iterable[Mapping[str, Any]]) -> None:
    """Add the figures of each row on two versions; a figure of an earlier comparison is kept."""
    for one in verdicts:
        if one["change"]:
            row = cells.setdefault((op_of(one["label"]), one["state"]), {})
            row.setdefault(base, f"{one['change']['base'] / 1000:,.1f}")
            row[head] = f"{one['change']['head'] / 1000:,.1f}{ARROWS.get(one['verdict'], '')}"


def measure_step(python: str) -> list[float]:
    """Measure the FSDP2 step in a process; the list is empty if that is skipped, as on torch 2.5."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        tests = ["--pyargs", "pytest_dtdispatch.suite", "-k", STEP]
        command = [python, "-m", "pytest", "--dtdispatch", "--dtdispatch-export", f"json:{path}", *tests]
        subprocess.run(command, check=False, stdout=sys.stderr)
        results = json.loads(path.read_text())["results"] if path.exists() else []
        return [one["measured_ns"] for one in results]


def add_steps(cells: Cells, pythons: Mapping[str, str]) -> None:
    """Add the time of the FSDP2 step on each version."""
    rounds = [{version: measure_step(pythons[version]) for version in pythons} for _ in range(STEP_PROCESSES)]
    for version in pythons:
        if samples := [ns for each in rounds for ns in each[version]]:
            row = cells.setdefault(("FSDP2, 16 groups", "step"), {})
            row[version] = f"{median(samples) / 1000:,.1f}"


def table(cells: Cells, versions: Sequence[str], state: str) -> Iterator[str]:
    """Yield the rows of a state as a Markdown table with a column for each version."""
    yield f"| {state}, us | {' | '.join(versions)} |"
    yield f"| --- {'| --: ' * len(versions)}|"
    for (op, of), row in cells.items():
        if of == state:
            yield f"| `{op}` | {' | '.join(row.get(version, '-') for version in versions)} |"


def main() -> None:
    """Compare each interpreter with the one before it, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    pythons = {version_of(python): python for python in parser.parse_args(sys.argv[1:cut]).pythons}
    cells: Cells = {}
    for base, head in pairwise(pythons):
        add_verdicts(cells, base, head, compare(pythons[base], pythons[head], sys.argv[cut + 1 :]))
    add_steps(cells, pythons)
    for state in ("hit", "miss", "step"):
        print("", *table(cells, list(pythons), state), sep="\n")


if __name__ == "__main__":
    main()
