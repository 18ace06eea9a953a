"""``dtdispatch ab --metric counts`` and ``instructions``: rules, what runs, what is said, which status."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_dtdispatch.ab.errands import usual_request
from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, Request
from pytest_dtdispatch.ab.number_rules import compare_numbers, screen_numbers
from pytest_dtdispatch.ab.report import summary
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.document import plain
from tests.ab.fakes import ROW, calls, fake_python

Numbers = list[dict[str, float]]
Answers = dict[str, Mapping[str, object]]
STEP = "t.py::test_step::train"
COUNTS, INSTRUCTIONS = usual_request("counts"), usual_request("instructions")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tables the room of a wide screen."""
    monkeypatch.setenv("COLUMNS", "140")


def counted(**per_step: float) -> dict[str, float]:
    return {
        f"{STEP}::{name}_per_step": number
        for name, number in {"misses": 0.0, "wraps": 4.0, **per_step}.items()
    }


def instructions(hit: float = 60_000, miss: float = 5e6, local: float = 12_000) -> dict[str, float]:
    return {f"{ROW}::hit": hit, f"{ROW}::miss": miss, f"{ROW}::local": local}


def verdicts(base: Numbers, head: Numbers, asked: Request = COUNTS) -> dict[str, Verdict]:
    judged = compare_numbers(base, head, asked).verdicts()
    return {one.row.rpartition("::")[2]: one.verdict for one in judged}


def compare(base: Path, head: Path, *more: str) -> int:
    return main(["ab", "--base", str(base), "--head", str(head), *more])


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ([0], [0], Verdict.PASSED),
        ([0], [1], Verdict.REGRESSED),
        ([2], [1], Verdict.IMPROVED),
        ([2.0], [2.25], Verdict.REGRESSED),
        ([0, 0], [1, 1], Verdict.REGRESSED),
        ([0, 3], [4, 5], Verdict.REGRESSED),
        ([0, 1], [1, 1], Verdict.INCONCLUSIVE),
        ([0, 1], [0, 0], Verdict.INCONCLUSIVE),
        ([1, 1], [0, 2], Verdict.INCONCLUSIVE),
    ],
)
def test_a_count_is_exact_and_one_that_varies_is_told_from_one_that_differs(
    base: list[float], head: list[float], verdict: Verdict
) -> None:
    found = verdicts([counted(misses=one) for one in base], [counted(misses=one) for one in head])
    assert found == {"misses_per_step": verdict, "wraps_per_step": Verdict.PASSED}


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ([60_000], [61_199], Verdict.PASSED),
        ([60_000], [61_201], Verdict.REGRESSED),
        ([60_000], [58_799], Verdict.IMPROVED),
        ([60_000, 60_100, 60_200], [63_000, 63_000, 60_300], Verdict.PASSED),  # the least stands for a side
        ([64_000, 60_000, 64_000], [63_000, 63_000, 63_000], Verdict.REGRESSED),
    ],
)
def test_instructions_are_held_to_a_threshold_by_the_least_of_each_side(
    base: list[float], head: list[float], verdict: Verdict
) -> None:
    before, after = ([instructions(hit=one) for one in side] for side in (base, head))
    assert verdicts(before, after, INSTRUCTIONS) == {"hit": verdict, "miss": Verdict.PASSED}


def test_plain_tensors_that_count_otherwise_contaminate_instructions() -> None:
    stage = compare_numbers([instructions()], [instructions(hit=90_000, local=13_000)], INSTRUCTIONS)
    assert {one.verdict for one in stage.verdicts()} == {Verdict.CONTAMINATED}
    assert stage.control == pytest.approx(math.log(13 / 12))
    assert "--control off" in stage.verdicts()[0].remedy


def test_a_number_that_one_side_has_is_missing_or_new_and_one_of_some_processes_inconclusive() -> None:
    base = [{"a::t::x": 1.0, "a::t::gone": 1.0, "a::t::some": 1.0}, {"a::t::x": 1.0, "a::t::gone": 1.0}]
    head = [{"a::t::x": 1.0, "a::t::new": 1.0, "a::t::some": 1.0}] * 2
    assert verdicts(base, head) == {
        "x": Verdict.PASSED,
        "some": Verdict.INCONCLUSIVE,
        "gone": Verdict.MISSING,
        "new": Verdict.NEW,
    }


@pytest.mark.parametrize(("head", "asked_for"), [(0, [(SCREEN,)]), (1, [(SCREEN,), (SCREEN, CONFIRM)])])
def test_fresh_processes_run_where_something_differs(head: float, asked_for: list[tuple[str, ...]]) -> None:
    seen = []

    def taken(*stages: str) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        seen.append(stages)
        return [counted()] * len(stages), [counted(misses=head)] * len(stages)

    screen_numbers(COUNTS, taken)
    assert seen == asked_for


def test_equal_counts_pass_after_one_sample_a_side_and_the_file_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ab.json"
    numbers = {"counts": counted(), "proofs": {f"{ROW}::never_hits": 0.0}}
    python = fake_python(tmp_path, "python", numbers=numbers)
    assert compare(python, python, "--metric", "counts", "--json", str(path)) == 0
    assert calls(tmp_path) == ["python"] * 4  # counts and proofs of each side
    assert "3 numbers: 3 passed" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["asked"]["metric"] == "counts"
    assert content["processes"][0]["numbers"] == {**counted(), f"{ROW}::never_hits": 0.0}


def test_a_count_that_grew_fails_by_name_and_is_judged_again_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ab.json"
    base = fake_python(tmp_path, "old", numbers={"counts": counted(), "proofs": {}})
    head = fake_python(tmp_path, "new", numbers={"counts": counted(misses=1.0), "proofs": {}})
    assert compare(base, head, "--metric", "counts", "--json", str(path)) == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("  train")]
    assert line.split() == ["train", "misses", "per", "step", "0", "1", "regressed"]
    assert "wraps" not in out
    assert "    find what made it grow" in out
    assert "2 numbers: 1 passed, 1 regressed" in out
    assert len(calls(tmp_path)) == 8
    assert main(["ab", "--resume", str(path)]) == 1
    assert capsys.readouterr().out == out
    assert len(calls(tmp_path)) == 8


def test_a_count_that_grew_says_what_came_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, before, after = f"{STEP}::misses_per_step", "mm at a.py:1", "add at a.py:2"
    one: Answers = {"counts": counted(misses=1.0), "proofs": {}, "details": {name: [before]}}
    two: Answers = {"counts": counted(misses=2.0), "proofs": {}, "details": {name: [before, after]}}
    base, head = fake_python(tmp_path, "old", numbers=one), fake_python(tmp_path, "new", numbers=two)
    path = tmp_path / "ab.json"
    assert compare(base, head, "--metric", "counts", "--json", str(path)) == 1
    out = capsys.readouterr().out
    assert f"\n    {after}\n" in out
    assert before not in out
    assert main(["ab", "--resume", str(path)]) == 1
    assert capsys.readouterr().out == out


def test_an_op_that_never_hits_any_more_is_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = fake_python(tmp_path, "old", numbers={"counts": {}, "proofs": {f"{ROW}::never_hits": 0.0}})
    head = fake_python(tmp_path, "new", numbers={"counts": {}, "proofs": {f"{ROW}::never_hits": 1.0}})
    assert compare(base, head, "--metric", "counts") == 1
    assert "never hits" in capsys.readouterr().out


def test_instructions_run_one_pair_and_two_more_of_another_layout_where_it_trips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = "open(told['calls'] + '.pads', 'a').write(str(len(os.environ['DTDISPATCH_AB_PADDING'])) + ' ')"
    base = fake_python(tmp_path, "old", does=notes, numbers={"instructions": instructions()})
    head = fake_python(tmp_path, "new", does=notes, numbers={"instructions": instructions(miss=7.5e6)})
    assert compare(base, head, "--metric", "instructions") == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if " miss " in line]
    assert line.split()[1:] == ["miss", "5,000,000", "0", "7,500,000", "0", "+50.00", "regressed"]
    assert "plain tensors shifted by +0.00 %" in out
    assert "2 rows: 1 passed, 1 regressed" in out
    assert calls(tmp_path) == ["old", "new", "old", "new", "new", "old"]
    assert (tmp_path / "calls.pads").read_text().split() == ["0", "0", "136", "136", "272", "272"]


def test_a_threshold_can_be_asked_for(tmp_path: Path) -> None:
    base = fake_python(tmp_path, "old", numbers={"instructions": instructions()})
    head = fake_python(tmp_path, "new", numbers={"instructions": instructions(hit=63_000)})
    assert compare(base, head, "--metric", "instructions", "--threshold", "6%") == 0
    assert len(calls(tmp_path)) == 2


@pytest.mark.parametrize(
    ("head", "status", "said"), [({"x::y::z": 1.0}, 1, "missing"), ({}, 5, "measured nothing")]
)
def test_nothing_compared_never_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: dict[str, float], status: int, said: str
) -> None:
    old = fake_python(tmp_path, "old", numbers={"counts": counted(), "proofs": {}})
    new = fake_python(tmp_path, "new", numbers={"counts": head, "proofs": {}})
    assert compare(old, new, "--metric", "counts") == status
    assert said in "".join(capsys.readouterr())
    assert plain(summary([], "number").spans) == "no numbers: nothing was compared"


def test_only_new_numbers_are_inconclusive(tmp_path: Path) -> None:
    old = fake_python(tmp_path, "old", numbers={"instructions": {f"{ROW}::local": 9.0}})
    new = fake_python(tmp_path, "new", numbers={"instructions": instructions(local=9.0)})
    assert compare(old, new, "--metric", "instructions") == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--metric", "speed"], "'speed' is not one of time, counts, instructions"),
        (
            ["--metric", "counts", "--floor", "hit=5%"],
            "--floor is for --metric time, and this",
        ),
        (["--metric", "instructions", "--passes", "3"], "--passes is for --metric time"),
        (["--threshold", "3%"], "--threshold is for --metric instructions, and this compares time"),
        (["--metric", "counts", "--threshold", "3%"], "--threshold is for --metric instructions"),
        (["--metric", "counts", "--control", "off"], "counts are exact"),
        (["--metric", "instructions", "--threshold", "3"], "'3' is not a percentage above 0%"),
    ],
)
def test_what_means_nothing_of_a_metric_is_refused(
    tmp_path: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    python = fake_python(tmp_path, "python")
    assert compare(python, python, *words) == 2
    assert line in capsys.readouterr().err
    assert not calls(tmp_path)


def test_a_file_of_another_metric_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ab.json"
    python = fake_python(tmp_path, "python", numbers={"counts": counted(), "proofs": {}})
    compare(python, python, "--metric", "counts", "--json", str(path))
    assert main(["ab", "--metric", "instructions", "--resume", str(path)]) == 2
    assert "it was measured with metric='counts', not 'instructions'" in capsys.readouterr().err


def test_a_file_of_an_earlier_release_compares_times(tmp_path: Path) -> None:
    path = tmp_path / "ab.json"
    python = fake_python(tmp_path, "python")
    assert compare(python, python, "--pairs", "4", "--json", str(path)) == 0
    content = json.loads(path.read_text())
    for name in ("metric", "threshold"):
        del content["asked"][name]
    for process in content["processes"]:
        del process["numbers"]
    path.write_text(json.dumps(content))
    ran = len(calls(tmp_path))
    assert main(["ab", "--resume", str(path)]) == 0
    assert len(calls(tmp_path)) == ran


def test_names_of_any_kind_break_no_table_and_send_no_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "t.py::test_<script>|`[\\x1b[31m]::" + "y" * 10_000 + "::misses_per_step"
    old = fake_python(tmp_path, "old", numbers={"counts": {name: 0.0}, "proofs": {}})
    new = fake_python(tmp_path, "new", numbers={"counts": {name: 1.0}, "proofs": {}})
    assert compare(old, new, "--metric", "counts") == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metric": "speed"}, "a metric 'speed'"),
        ({"threshold": 0}, "threshold of 0"),
        ({"numbers": {"a::b::c": float("nan")}}, "a::b::c: nan"),
        ({"numbers": ["a"]}, "not whole"),
        ({"details": {"a": 7}}, "not whole"),
    ],
)
def test_a_file_that_cannot_be_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], said: str
) -> None:
    path = tmp_path / "ab.json"
    python = fake_python(tmp_path, "python", numbers={"counts": counted(), "proofs": {}})
    compare(python, python, "--metric", "counts", "--json", str(path))
    content = json.loads(path.read_text())
    for name, value in change.items():
        (content["asked"] if name in content["asked"] else content["processes"][0])[name] = value
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["ab", "--resume", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
