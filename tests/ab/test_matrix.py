"""``dtdispatch matrix``: what runs, in which order, what is said, which status; with fake interpreters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_dtdispatch.ab.matrix_report import matrix_document
from pytest_dtdispatch.ab.model import ProcessSample, Request, RowSample, Run, Side, in_turns
from pytest_dtdispatch.ab.neighbours import Neighbours
from pytest_dtdispatch.ab.versions import headings
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from tests.ab.fakes import ROW, calls, fake_python, processes_in
from tests.rendered import lines_of

FEW = ("--pairs", "4", "--confirm", "6")
VERSIONS = ("2.5.1", "2.7.1", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")


def matrix(pythons: Sequence[Path], *more: str) -> int:
    return main(["matrix", *(word for python in pythons for word in ("--python", str(python))), *more])


def fake_torch(folder: Path, torch: str, **told: object) -> Path:
    return fake_python(folder, f"v{torch}", probe={"torch": f"{torch}+cpu"}, **told)  # type: ignore[arg-type]


def table_line(out: str, state: str) -> list[str]:
    """Give the words of the one line of the table in a state."""
    [line] = [line for line in out.splitlines() if line.startswith("  add.Tensor") and f" {state} " in line]
    return line.split(f" {state} ")[1].split()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tables the room of a wide screen."""
    monkeypatch.setenv("COLUMNS", "160")


def test_each_round_runs_each_interpreter_once_and_each_second_one_is_turned_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matrix.json"
    pythons = [fake_torch(tmp_path, torch) for torch in ("2.9.1", "2.10.0", "2.11.0")]
    assert matrix(pythons, "--pairs", "4", "--floor", "hit=90%,miss=90%", "--json", str(path)) == 0
    assert calls(tmp_path) == [f"v{n}" for each in in_turns(("2.9.1", "2.10.0", "2.11.0"), 4) for n in each]
    out, err = capsys.readouterr()
    assert "2.9.1 to 2.10.0: 2 rows: 2 passed" in out
    assert "2.10.0 to 2.11.0: 2 rows: 2 passed" in out
    assert len(table_line(out, "hit")) == 3  # figures alone: all passed
    assert "screen: process 12 of 12 (python-1) took" in err
    content = json.loads(path.read_text())
    assert content["asked"]["pythons"] == list(map(str, pythons))
    assert [side["torch"] for side in content["sides"].values()] == ["2.9.1+cpu", "2.10.0+cpu", "2.11.0+cpu"]
    assert Counter(process["side"] for process in content["processes"]) == {
        "python-1": 4,
        "python-2": 4,
        "python-3": 4,
    }


def test_what_tripped_is_confirmed_on_fresh_rounds_of_those_neighbours_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matrix.json"
    pythons = [
        fake_torch(tmp_path, torch, **({"hit": 1.5} if torch > "2.12" else {}))
        for torch in ("2.10.0", "2.11.0", "2.13.0", "2.14.0")
    ]
    assert matrix(pythons, *FEW, "--json", str(path)) == 1
    assert Counter(calls(tmp_path)) == {"v2.10.0": 4, "v2.11.0": 10, "v2.13.0": 10, "v2.14.0": 4}
    out = capsys.readouterr().out
    words = table_line(out, "hit")
    assert len(words) == 6
    assert (words[4], words[3].startswith("+")) == ("regressed", True)
    assert "2.11.0 to 2.13.0: 2 rows: 1 passed, 1 regressed" in out
    assert "2.13.0 to 2.14.0: 2 rows: 2 passed" in out
    [regressed] = [v for v in json.loads(path.read_text())["verdicts"] if v["verdict"] == "regressed"]
    assert (regressed["base"], regressed["head"]) == ("python-2", "python-3")
    assert matrix((), "--resume", str(path)) == 1  # nothing is missing: it is judged again
    assert capsys.readouterr().out == out
    assert len(calls(tmp_path)) == 28


def test_a_faster_one_is_improved_and_a_slower_plain_tensor_contaminates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = fake_torch(tmp_path, "2.9.1"), fake_torch(tmp_path, "2.10.0", miss=0.5)
    assert matrix((old, new), *FEW) == 0
    assert "improved" in table_line(capsys.readouterr().out, "miss")
    moved = fake_torch(tmp_path, "2.11.0", local=1.5)
    assert matrix((old, moved), *FEW) == 4
    out = capsys.readouterr().out
    assert "2 contaminated" in out
    assert "contaminated: plain tensors shifted past 3 %: run again, or --control off" in out
    assert any("plain tensors (control)" in line and " +" in line for line in out.splitlines())


def test_a_run_goes_on_with_the_round_that_was_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matrix.json"
    fails = "if open(told['calls']).read().count('v2.11.0') == 2: sys.exit(3)"
    pythons = [fake_torch(tmp_path, torch) for torch in ("2.9.1", "2.10.0")]
    pythons.append(fake_torch(tmp_path, "2.11.0", does=fails))
    floor = ("--floor", "hit=90%,miss=90%")
    assert matrix(pythons, "--pairs", "4", *floor, "--json", str(path)) == 5
    assert f"go on with --resume {path}" in capsys.readouterr().err
    assert processes_in(path) == 3
    assert matrix((), "--resume", str(path)) == 0
    assert len(calls(tmp_path)) == 4 + 9
    assert processes_in(path) == 12


def test_what_a_version_does_not_have_is_a_dash_and_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"medians_ns": [7e3], "quietest_ns": 7e3, "samples": 9}
    never = {"rows": {f"{ROW}::miss": row}, "absent": {f"{ROW}::hit": "never hits: it propagates"}}
    failed = {"rows": {"t.py::test_mm::mm@4::hit": row}, "absent": {"t.py::test_add": "failed: no rule"}}
    pythons = [
        fake_torch(tmp_path, "2.9.1", only=failed),
        fake_torch(tmp_path, "2.10.0", only=never),
        fake_torch(tmp_path, "2.11.0"),
    ]
    matrix(pythons, *FEW)
    out = capsys.readouterr().out
    assert table_line(out, "hit")[:2] == ["-", "-"]
    assert table_line(out, "hit")[3] == "new"
    assert table_line(out, "miss")[0] == "-"
    assert "- in 2.9.1: t.py::test_add: failed: no rule (2 rows)" in out
    assert f"- in 2.10.0: {ROW}::hit: never hits: it propagates" in out
    assert "- in 2.11.0: t.py::test_mm::mm@4::hit: its test ran, and measured no such row" in out


def test_counts_and_instructions_have_their_own_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(torch: str, misses: float, hit: float) -> Path:
        step = "t.py::test_step::train"
        counts = {f"{step}::misses_per_step": misses, f"{step}::wraps_per_step": 4.0}
        numbers = {"counts": counts, "proofs": {}, "instructions": {f"{ROW}::hit": hit, f"{ROW}::local": 9e3}}
        return fake_torch(tmp_path, torch, numbers=numbers)

    pythons = [fake("2.9.1", 1, 60_000), fake("2.10.0", 1, 59_900), fake("2.11.0", 3, 70_000)]
    assert matrix(pythons, "--metric", "counts") == 1
    out = capsys.readouterr().out
    assert "3 regressed" in " ".join(out.split())
    assert "wraps" not in out  # equal everywhere
    assert matrix(pythons, "--metric", "instructions") == 1
    assert table_line(capsys.readouterr().out, "hit") == ["60,000", "59,900", "70,000", "+16.9%", "regressed"]


def test_nothing_that_compares_is_no_success(tmp_path: Path) -> None:
    old, new = fake_torch(tmp_path, "2.9.1"), fake_torch(tmp_path, "2.10.0", row="t.py::test_sum::sum@4")
    assert matrix((old, new), *FEW) == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name two interpreters or more: --python PYTHON --python PYTHON"),
        (["GOOD"], "name two interpreters or more"),
        (["GOOD", "GOOD"], "good: is named twice; leave one out"),
        (["GOOD", "/nowhere/python"], "--python /nowhere/python: this interpreter does not exist"),
        (["GOOD", "BARE"], "has no pytest-dtdispatch; install it there"),
    ],
)
@pytest.mark.parametrize("command", ["matrix"])
def test_interpreters_that_cannot_be_compared(
    command: str, words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "GOOD": str(fake_python(tmp_path, "good")),
        "BARE": str(fake_python(tmp_path, "bare", probe={"plugin": ""})),
    }
    assert main([command, *(w for word in words for w in ("--python", given.get(word, word)))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert line in err
    assert not calls(tmp_path)


def test_what_means_nothing_of_a_metric_or_of_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = fake_python(tmp_path, "good"), fake_python(tmp_path, "other")
    assert matrix((good, other), "--metric", "counts", "--floor", "hit=5%") == 2
    assert "--floor is for --metric time" in capsys.readouterr().err
    path = tmp_path / "ab.json"
    assert main(["ab", "--base", str(good), "--head", str(good), "--pairs", "4", "--json", str(path)]) == 0
    assert matrix((), "--resume", str(path)) == 2
    assert "was written by dtdispatch ab, not matrix" in capsys.readouterr().err


def test_a_file_whose_rounds_are_not_those_of_its_screen_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matrix.json"
    pythons = [fake_torch(tmp_path, torch) for torch in ("2.9.1", "2.10.0", "2.11.0")]
    pythons.append(fake_torch(tmp_path, "2.12.0", hit=1.5))
    assert matrix(pythons, *FEW, "--json", str(path)) == 1
    content = json.loads(path.read_text())
    fresh = [process for process in content["processes"] if process["stage"] == "confirm"]
    for process in fresh:
        process["side"] = {"python-3": "python-1", "python-4": "python-2"}[process["side"]]
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert matrix((), "--resume", str(path)) == 2
    assert "not whole: the processes of its confirm are not the rounds" in capsys.readouterr().err


def side(torch: str, python: str = "3.12.3") -> Side:
    return Side(python, "0.1.0", torch, "abc", "a CPU")


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([side("2.9.1+cpu"), side("2.10.0+cu130")], ["2.9.1", "2.10.0"]),
        ([side("2.9.1+cpu"), side("2.9.1+cu130")], ["2.9.1+cpu", "2.9.1+cu130"]),
        ([side("2.9.1"), side("2.9.1", "3.10.1")], ["2.9.1, Python 3.12.3", "2.9.1, Python 3.10.1"]),
        ([side("2.9.1"), side("2.9.1"), side("2.10.0")], ["one", "two", "2.10.0"]),
    ],
)
def test_a_heading_is_as_short_as_tells_versions_apart(sides: list[Side], expected: list[str]) -> None:
    asked = Request(pythons=("envs/one/bin/python", "envs/two/bin/python", "envs/three/bin/python"))
    named = {f"python-{number}": one for number, one in enumerate(sides, 1)}
    assert list(headings(asked, named).values()) == expected


def test_folders_of_one_name_are_told_by_their_paths() -> None:
    asked = Request(pythons=("a/venv/bin/python", "b/venv/bin/python"))
    names = headings(asked, {"python-1": side("2.9.1"), "python-2": side("2.9.1")})
    assert list(names.values()) == ["a/venv", "b/venv"]


@pytest.mark.parametrize(("width", "most_blocks"), [(80, 9), (120, 5), (300, 1)])
def test_nine_versions_stay_readable(width: int, most_blocks: int) -> None:
    row = "tests/test_layers.py::test_attention[bf16]::addmm.default(f32[16,8]S0, f32[8,8]R)@4::hit"
    sides = {f"python-{n}": side(f"{torch}+cpu") for n, torch in enumerate(VERSIONS, 1)}
    processes = tuple(
        ProcessSample("screen", name, 3.0, {row: RowSample((1.234e6,), 1.234e6, 9)}) for name in sides
    )
    verdict = RowVerdict(row, Verdict.INCONCLUSIVE, (("shift_percent", 12.3),), "more")
    found = {
        (f"python-{n}", f"python-{n + 1}"): Neighbours({}, [verdict] if n % 4 == 0 else [])
        for n in range(1, len(VERSIONS))
    }
    run = Run(Request(pythons=VERSIONS), sides, processes)
    lines = lines_of(matrix_document(run, found, width), width)
    heads = [line for line in lines if line.startswith("  row ")]
    assert len(heads) <= most_blocks
    assert [name for head in heads for name in head.split()[2:]] == list(VERSIONS)
    table = [line for line in lines if line.startswith(("  row ", "  addmm"))]
    assert max(map(len, table)) <= width
    assert all("addmm.default(" in line for line in lines if line.startswith("  addmm"))
    assert "+12.3% inconclusive" in " ".join(table)
