"""Verdicts of an interrupted A/B run, and its announcement of processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtdispatch.ab.process import Arm
from pytest_dtdispatch.ab.rule import DEFAULT_RULES
from pytest_dtdispatch.ab.run import Runner, judge_runs
from pytest_dtdispatch.ab.values import Metric
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, TIME, Samples, State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.run import ReportedRun, Turn
from tests.ab.fakes import counted, fake_python, proofs, run_of, wait_for
from tests.reported_runs import measured


def interrupted(metric: Metric, *ran: str) -> dict[str, list[ReportedRun]]:
    """Return the runs of each side after processes of these sides."""
    runs: dict[str, list[ReportedRun]] = {"base": [], "head": []}
    for number, side in enumerate(ran):
        noise = number if metric == Metric.TIME else 0
        rows = {"slower": 150_000 if side == "head" else 100_000, "equal": 10_000}
        if metric == Metric.COUNTS:
            run = counted({f"t.py::test::{name}::n": value for name, value in rows.items()})
        else:
            unit = TIME if metric == Metric.TIME else INSTRUCTIONS
            samples = {name: Samples(State.HIT, (value + noise,), unit=unit) for name, value in rows.items()}
            of_test = tuple(measured(name, one) for name, one in samples.items())
            run = run_of(str(metric), measured={"t.py::test": of_test}, control={"add": 5})
        runs[side].append(replace(run, turn=Turn("x", number + 1, side, 61.0)))
    return runs


def verdicts(metric: Metric, *ran: str) -> dict[str, str]:
    runs = interrupted(metric, *ran)
    judged = judge_runs(runs["base"], runs["head"], DEFAULT_RULES[metric])
    return {one.row.label: str(one.verdict) for one in judged.verdicts}


def both(pairs: int) -> Sequence[str]:
    return ["base", "head"] * pairs


UNDECIDED = {"slower": "inconclusive", "equal": "inconclusive"}


def test_counts_of_both_sides_are_judged() -> None:
    found = {"slower": "regressed", "equal": "passed"}
    assert verdicts(Metric.COUNTS, *both(1)) == found
    assert verdicts(Metric.COUNTS, *both(1), "base") == found


@pytest.mark.parametrize(("metric", "first", "last"), [(Metric.TIME, 3, 5), (Metric.INSTRUCTIONS, 1, 3)])
def test_undecided_rows_are_inconclusive(metric: Metric, first: int, last: int) -> None:
    undecided = {"slower": "inconclusive", "equal": "passed"}
    if first > 1:
        assert verdicts(metric, *both(first)[:-1]) == UNDECIDED
    assert verdicts(metric, *both(first)) == undecided
    assert verdicts(metric, *both(last)[:-1]) == undecided
    assert verdicts(metric, *both(last)) == {"slower": "regressed", "equal": "passed"}


def test_unproved_hits_of_a_killed_process_are_not_missing() -> None:
    """A process that was killed between counting and proving hits leaves counts."""
    runs = {side: [*of_side] for side, of_side in interrupted(Metric.COUNTS, *both(1)).items()}
    runs["base"].append(proofs({"t.py::test::equal::never_hits": 0}))
    judged = judge_runs(runs["base"], runs["head"], DEFAULT_RULES[Metric.COUNTS])
    assert {one.row.state: one.verdict for one in judged.verdicts if one.row.label == "equal"} == {
        "n": Verdict.PASSED
    }
    runs["head"].append(proofs({"t.py::test::equal::never_hits": 1}))
    judged = judge_runs(runs["base"], runs["head"], DEFAULT_RULES[Metric.COUNTS])
    assert {one.row.state: one.verdict for one in judged.verdicts if one.row.label == "equal"} == {
        "n": Verdict.PASSED,
        "never_hits": Verdict.REGRESSED,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_command_prints_what_it_counted(tmp_path: Path, number: signal.Signals) -> None:
    waits = f"open({str(tmp_path / 'waits')!r}, 'w').close()\ntime.sleep(600)\n"
    third = f"if open({str(tmp_path / 'calls')!r}).read().count(spec['name']) > 2:\n    "
    base = fake_python(tmp_path, "old", runs=[counted({"t.py::test::step::misses": 3})])
    waits = third + waits.replace("\n", "\n    ").rstrip(" ")
    head = fake_python(tmp_path, "new", waits, runs=[counted({"t.py::test::step::misses": 4})])
    sides = ["--base", str(base), "--head", str(head), "--metric", "counts"]
    command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "waits").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "2 numbers: 1 passed, 1 regressed" in out
    assert err.endswith("dtdispatch: interrupted\n")


def test_instructions_announce_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of processes comes before the first one, and the time that is left after it."""
    printed = []
    python = str(fake_python(tmp_path, "python"))

    def sample(runner: Runner, arm: Arm, number: int) -> list[ReportedRun]:
        printed.append(capsys.readouterr().err)
        return interrupted(Metric.INSTRUCTIONS, "base")["base"]

    monkeypatch.setattr(Runner, "sample", sample)
    assert main(["ab", "--metric", "instructions", "--base", python, "--head", python]) == 0
    assert printed == [
        "2 processes count instructions, and up to 6 more if a row differs\nprocess 1 of 2 (base)\n",
        "process 2 of 2 (head), about 61 s left\n",
    ]
