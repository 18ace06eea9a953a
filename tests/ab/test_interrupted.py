"""Verdicts of an interrupted A/B run, and its announcement of processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_dtdispatch.ab import run as ab_run
from pytest_dtdispatch.ab.answer import CONTROL
from pytest_dtdispatch.ab.process import Versions
from pytest_dtdispatch.ab.report import run_document
from pytest_dtdispatch.ab.rule import PAIRS, Metric, Rule
from pytest_dtdispatch.ab.run import ProcessSample, Request, Run, Runner, judge_interrupted
from pytest_dtdispatch.core.row_id import RowId
from tests.ab.fakes import fake_python, wait_for
from tests.rendered import lines_of

SLOWER, EQUAL = RowId("t.py::test", "slower", "hit"), RowId("t.py::test", "equal", "hit")
PLAIN = RowId(CONTROL, "add", CONTROL)
VERSIONS = {side: Versions("3.12.3", "0.1.0", "2.13.0", "abc", "a CPU") for side in ("base", "head")}


def interrupted(metric: Metric, *ran: str) -> Run:
    """Return a run after processes of these sides."""
    pairs, confirm = PAIRS[metric]
    processes = []
    for number, side in enumerate(ran):
        noise = 1 + number * 1e-4 if metric == Metric.TIME else 1
        values = {SLOWER: 100.0 * noise * (1.5 if side == "head" else 1), EQUAL: 10.0 * noise, PLAIN: 5.0}
        processes.append(ProcessSample(values, side=side))
    request = Request(("old", "new"), rule=Rule(metric, pairs, confirm))
    return Run(request, VERSIONS, tuple(processes))


def verdicts(run: Run) -> dict[str, str]:
    [result] = judge_interrupted(run).values()
    return {one.row.label: str(one.verdict) for one in result.verdicts}


def both(pairs: int) -> Sequence[str]:
    return ["base", "head"] * pairs


UNDECIDED = {"slower": "inconclusive", "equal": "inconclusive"}


@pytest.mark.parametrize("metric", list(Metric))
def test_rows_of_one_side_are_inconclusive(metric: Metric) -> None:
    run = interrupted(metric, "base")
    assert verdicts(interrupted(metric)) == {}
    assert verdicts(run) == UNDECIDED
    [line] = [line for line in lines_of(run_document(run, judge_interrupted(run)), 200) if " slower " in line]
    assert line.split()[2:4] in (["0.10", "-"], ["100", "-"])


def test_counts_of_both_sides_are_judged() -> None:
    found = {"slower": "regressed", "equal": "passed"}
    assert verdicts(interrupted(Metric.COUNTS, *both(1))) == found
    assert verdicts(interrupted(Metric.COUNTS, *both(1), "base")) == found


@pytest.mark.parametrize(("metric", "first", "last"), [(Metric.TIME, 3, 5), (Metric.INSTRUCTIONS, 1, 3)])
def test_undecided_rows_are_inconclusive(metric: Metric, first: int, last: int) -> None:
    undecided = {"slower": "inconclusive", "equal": "passed"}
    if first > 1:
        assert verdicts(interrupted(metric, *both(first)[:-1])) == UNDECIDED
    assert verdicts(interrupted(metric, *both(first))) == undecided
    assert verdicts(interrupted(metric, *both(last)[:-1])) == undecided
    assert verdicts(interrupted(metric, *both(last))) == {"slower": "regressed", "equal": "passed"}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_command_prints_what_it_counted(tmp_path: Path, number: signal.Signals) -> None:
    counts = {"counts": {"t.py::test::step::misses": 3}, "proofs": {}}
    waits = f"open({str(tmp_path / 'waits')!r}, 'w').close()\ntime.sleep(600)\n"
    third = f"if open({str(tmp_path / 'calls')!r}).read().count(spec['name']) > 2:\n    "
    base = fake_python(tmp_path, "old", numbers=counts)
    more = {**counts, "counts": {"t.py::test::step::misses": 4}}
    head = fake_python(tmp_path, "new", third + waits.replace("\n", "\n    ").rstrip(" "), numbers=more)
    sides = ["--base", str(base), "--head", str(head), "--metric", "counts"]
    command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "waits").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "1 number: 1 regressed" in out
    assert err.endswith("dtdispatch: interrupted\n")


def test_instructions_announce_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number comes before the first process, and its duration after it."""
    printed = []

    def sample(runner: Runner, arm: object) -> ProcessSample:
        printed.append(capsys.readouterr().err)
        values = {EQUAL: 10.0, PLAIN: 5.0}
        return ProcessSample(values, side=str(arm), seconds=61.0)

    monkeypatch.setattr(Runner, "sample", sample)
    monkeypatch.setattr(ab_run, "is_watched", lambda is_terminal: True)
    arms = {side: side for side in ("base", "head")}
    Runner(interrupted(Metric.INSTRUCTIONS), arms, tmp_path, 10.0, None).run_rounds()  # type: ignore[arg-type]
    assert printed == [
        "2 processes count instructions, and up to 6 more if a row differs\n",
        "process 1 of 2 (base) took 61.0 s, about 61 s left\n",
    ]
