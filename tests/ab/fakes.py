"""Fake interpreters: scripts that save runs for an A/B run without measuring."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    FunctionShare,
    Measurement,
    Profile,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.report.run import ReportedRun, saved_text
from pytest_dtdispatch.steps.events import Miss, QueriedCache
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.reported_runs import measured, results_of
from tests.row_ids import number

ROW = "t.py::test_add::add.Tensor(f32[8]S0)@4"
PLAIN = "control::add::control"
NS = {"hit": 7_000, "miss": 1_300_000}
# Starts in a third of the time of an interpreter that searches packages and imports json and random.
SCRIPT = """#!{python} -IS
import os, sys, time
spec = {spec}
if sys.argv[1] == "-c":
    print("dtdispatch-probe " + str(spec["probe"]).replace("'", '"'))
    sys.exit(0)
with open(spec["calls"], "a") as calls:
    calls.write(spec["name"] + "\\n")
exec(spec["does"])
text = spec["runs"][os.environ["DTDISPATCH_AB_METRIC"]]
for name, value in (("hit", 7e3), ("miss", 1.3e6), ("control", 2e3)):
    noise = 0.99 + 0.005 * os.urandom(1)[0] / 255
    text = text.replace("<" + name + ">", str(round(value * spec["factors"].get(name, 1.0) * noise)))
if "DTDISPATCH_AB_CHECKOUT" in os.environ:
    text = text.replace('"environment"', '"imports": ["' + os.getcwd() + '"], "environment"', 1)
with open(os.environ["DTDISPATCH_AB_OUTPUT"], "w") as output:
    output.write(text)
"""
# Samples whose values the script replaces by random ones.
HOLDERS = {1_000_000 + number: f"<{state}>" for number, state in enumerate((*NS, "control"))}


def run_of(metric: str, torch: str = "2.13.0", **more: object) -> ReportedRun:
    """Return a saved run of a metric."""
    names = {"metric": metric, "Python": "CPython 3.12.3", "torch version": torch, "torch build": "abc"}
    return ReportedRun(environment=names, **more)  # type: ignore[arg-type]


def timed(row: str) -> ReportedRun:
    """Return a run of times of one row, whose values the script replaces."""
    test, _, label = row.rpartition("::")
    [hit, miss, plain] = HOLDERS
    states = (Samples(State.HIT, (hit,)), Samples(State.MISS, (miss,)))
    return run_of("time", measured={test: (measured(label, *states),)}, control={"add": plain})


def counted(numbers: Mapping[str, float], *steps: Steps, test: str = "t.py::test_step") -> ReportedRun:
    """Return a run of counts: numbers by row and metric, and steps of a test."""
    values = []
    for name, value in numbers.items():
        row, _, metric = name.rpartition("::")
        values.append(number(row, metric, round(value)))
    return run_of("counts", numbers=tuple(values), results=results_of(*steps, test=test))


def missing(*lines: int, called: Sequence[str] = ()) -> Steps:
    """Return a step that misses at these lines, with these calls in its warm-up."""
    events = tuple(
        Miss(f"mm{line}@4", "first call of this op", QueriedCache.NATIVE, place=CodePlace("layers.py", line))
        for line in lines
    )
    return Steps("train", (StepCounts(called=tuple(called)),), (StepCounts(hits=len(called), events=events),))


def proofs(numbers: Mapping[str, float]) -> ReportedRun:
    """Return a run of times that proves hits of rows, or their absence."""
    found: dict[str, tuple[Measurement, ...]] = {}
    for name, never in numbers.items():
        test, label, _ = name.rsplit("::", 2)
        refused = Samples(State.HIT, (), (Refused("it propagated", 2),))
        found[test] = (measured(label, refused if never else Samples(State.HIT, (7_000,))),)
    return run_of("time", measured=found)


def of_instructions(
    hit: int = 60_000, miss: int = 5_000_000, plain: int = 12_000, functions: Sequence[str] = ()
) -> ReportedRun:
    """Return a run of instructions of one row, with the functions of its miss."""
    profile = None
    if functions:
        shares = [line.split(" ", 1) for line in functions]
        profile = Profile(tuple(FunctionShare(name, int(count)) for count, name in shares), miss)
    samples = (
        Samples(State.HIT, (hit,), unit=INSTRUCTIONS),
        Samples(State.MISS, (miss,), unit=INSTRUCTIONS, profile=profile),
    )
    test, _, label = ROW.rpartition("::")
    control = {"add": plain}
    return run_of("instructions", measured={test: (measured(label, *samples),)}, control=control)


def fake_python(
    folder: Path,
    name: str,
    does: str = "",
    row: str = ROW,
    probe: Mapping[str, str | int] | None = None,
    runs: Sequence[ReportedRun] = (),
    **factors: float,
) -> Path:
    """Write a fake interpreter.

    Args:
        folder: its folder; each measuring process adds a line to the file ``calls`` in it.
        name: its name.
        does: Python code that a measuring process runs first.
        row: test and signature of its row.
        probe: overrides of its answer to the version probe.
        runs: runs that it saves, by their metrics, in place of one of random times.
        **factors: factors of its hits, misses and plain ops.
    """
    saved = {run.environment["metric"]: run for run in (timed(row), run_of("counts"), *runs)}
    texts = {}
    for metric, run in saved.items():
        texts[metric] = saved_text(run)
        for value, holder in HOLDERS.items():
            texts[metric] = texts[metric].replace(str(value), holder)
    good = {"plugin": version("pytest-dtdispatch"), "has_torch": 1, "path": [], "sources": []}
    spec = {"name": name, "calls": str(folder / "calls"), "does": does, "factors": factors}
    spec |= {"runs": texts, "probe": {**good, **(probe or {})}}
    path = folder / name
    path.write_text(SCRIPT.format(python=sys.executable, spec=repr(spec)))
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    """Return the interpreters of all measuring processes, in the order of their runs."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def waiting_python(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a fake interpreter that starts a child and waits, and the file of both numbers."""
    pids = folder / "pids"
    does = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.replace({str(pids)!r} + '.part', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    return fake_python(folder, name, does=does), pids


def wait_for_end(pids: Path) -> None:
    """Wait until all processes of a file have ended."""
    for pid in map(int, pids.read_text().split()):
        wait_for(partial(is_gone, pid))


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; zombies count as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
