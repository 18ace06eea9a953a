"""Invalid requests and failed measurements are reported in one line, with separate exit statuses."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.report.run import read_run, saved_text
from tests.ab.fakes import calls, counted, fake_python, run_of
from tests.ci.pull_requests import git


def error_line(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; return its only line apart from progress."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("process ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("dtdispatch: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--base PYTHON --head PYTHON"),
        (["--python", "x"], "unrecognized arguments: --python"),
        (["--base", sys.executable, "--head", "/nowhere"], "head /nowhere: is not an executable"),
        (["--base-rev", "HEAD"], "--base-rev and --head-rev go together"),
        (["--pairs", "0"], "argument --pairs: '0'"),
        (["--pairs", "2"], "--pairs 2, --confirm 8: --metric time needs at least 3 and 5"),
        (["--confirm", "4"], "--pairs 3, --confirm 4: --metric time needs at least 3 and 5"),
        (["--pairs", "9"], "--pairs 9, --confirm 8: --metric time needs at least 3 and 9"),
        (["--passes", "3"], "--passes; each process runs its tests once"),
        (["--floor", "hit=abc"], "argument --floor: 'hit=abc'"),
        (["--floor", "hit=5%,hit=6%"], "floors of hit and miss"),
        (["--floor", "hit=2000%"], "at most 1000%"),
        (["--floor", "cold=5%"], "floors of hit and miss"),
        (["--floor", "hit=5"], "'hit=5' is not a percentage"),
        (["--control", "much"], "'much' is not a percentage"),
        (["--base", "/nowhere/python", "--head", "x"], "base /nowhere/python: is not an executable"),
        (["--base", __file__, "--head", sys.executable], "is not an executable"),
        (["--base-rev", "nonsense^^", "--head-rev", "HEAD"], "--base-rev nonsense^^: no such commit in "),
        (["--metric", "speed"], "'speed' is not one of time, counts, instructions"),
        (["--metric", "counts", "--floor", "hit=5%"], "--floor is for --metric time"),
        (["--metric", "counts", "--control", "off"], "--control is for --metric time and instructions"),
        (["--judge=--"], "argument --judge: expected one argument"),
        (["--base", "\x1b[31m\udcff\r", "--head", "x"], r"base \x1b[31m\udcff\r: is not an executable"),
        (["--judge", "a" * 300], f"--judge {'a' * 300}: "),
        (["--judge", __file__], "it has no base/*.json"),
        (["--time-limit", "1e300"], "'1e300' is not a number of seconds"),
        (["--pairs", "9" * 5000], "9..."),
        (["--\x1b[31mfoo"], r"unrecognized arguments: --\x1b[31mfoo"),
    ],
)
def test_invalid_command_line_is_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = error_line(["ab", *words], 2, capsys)
    assert line in text
    assert text.isprintable()


@pytest.mark.parametrize(
    ("probe", "line"),
    [
        ({"plugin": ""}, ": has no pytest-dtdispatch"),
        ({"plugin": "0.0.1"}, ": has pytest-dtdispatch 0.0.1"),
        ({"has_torch": 0}, "has no torch"),
        (None, "is not a working Python interpreter: I am a teapot"),
    ],
)
def test_unusable_interpreter_is_refused(
    tmp_path: Path, probe: dict[str, str | int] | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = fake_python(tmp_path, "good"), fake_python(tmp_path, "bad", probe=probe)
    if probe is None:
        bad.write_text("#!/bin/sh\necho 'I am a teapot' >&2\nexit 7\n")
    text = error_line(["ab", "--base", str(good), "--head", str(bad)], 2, capsys)
    assert f"head {bad}: " in text
    assert line in text
    assert not calls(tmp_path)


@pytest.mark.parametrize(
    ("does", "line"),
    [
        ("os.kill(os.getpid(), 11)", "died of SIGSEGV"),
        ("print('ImportError: broken'); sys.exit(3)", "exit status 3: ImportError: broken"),
        ("sys.exit(5)", "no test was collected"),
        (
            "print('ERROR: usage\\npytest: error: no --keep'); sys.exit(4)",
            "exit status 4: pytest: error: no --keep",
        ),
        ("print('FAILED t.py::test_add - boom'); sys.exit(1)", "tests failed: FAILED t.py::test_add - boom"),
        ("sys.exit(0)", "measured nothing; its last output: "),
        ("open(os.environ['DTDISPATCH_AB_OUTPUT'], 'w').write('{'); sys.exit(0)", "head.json is not JSON"),
        ("spec['runs']['time'] = spec['runs']['counts'].replace('counts', 'time')", "measured nothing: "),
        (
            "spec['runs']['time'] = spec['runs']['time'].replace('<hit>', '7.5')",
            "head.json is not a saved run",
        ),
        ("time.sleep(600)", "killed after 0.5 s: raise --time-limit"),
    ],
)
def test_failed_process_ends_the_run_with_its_log(
    tmp_path: Path, does: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "0.5" if "sleep" in does else "60"
    good, bad = fake_python(tmp_path, "good"), fake_python(tmp_path, "bad", does=does)
    text = error_line(["ab", "--base", str(good), "--head", str(bad), "--time-limit", limit], 5, capsys)
    assert f"head {bad}: " in text
    assert line in text
    assert Path(text.rpartition("log: ")[2]).exists()
    assert calls(tmp_path) == ["good", "bad"]


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a completed run, whose interpreter is unchanged."""
    folder = tmp_path_factory.mktemp("saved")
    good = str(fake_python(folder, "good"))
    assert main(["ab", "--base", good, "--head", good, "--keep", str(folder / "runs")]) == 0
    return folder / "runs"


@pytest.fixture
def whole(tmp_path: Path, saved_folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a copy of that folder, and discard the captured output."""
    capsys.readouterr()
    return Path(shutil.copytree(saved_folder, tmp_path / "runs"))


@pytest.mark.parametrize("content", ["{", '{"benchmarks": []}'])
def test_judging_another_kind_of_file_is_refused(
    whole: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = whole / "head/02-time.json"
    path.write_text(content)
    assert f"{path} is not " in error_line(["ab", "--judge", str(whole)], 2, capsys)


def test_incomplete_run_is_refused(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole / "head/02-time.json"
    stopped = "the run stopped after 1 of 3 tests"
    path.write_text(saved_text(replace(read_run(path), stopped=stopped)))
    ends = f"{path}: the saved run is incomplete: {stopped}"
    assert error_line(["ab", "--judge", str(whole)], 2, capsys).endswith(ends)


def test_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("base", "head"):
        text = error_line(["ab", "--judge", str(tmp_path)], 2, capsys)
        assert text.endswith(f"--judge {tmp_path}: it has no {side}/*.json, as --keep leaves them")
        (tmp_path / side).mkdir()
        (tmp_path / side / "1.json").write_text(saved_text(run_of("time")))
    assert "base: no run has values of --metric time" in error_line(
        ["ab", "--judge", str(tmp_path)], 2, capsys
    )


def test_runs_of_another_metric_or_build_are_refused(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (whole / "head").iterdir():
        path.unlink()
    (whole / "head/02-time.json").write_text(saved_text(run_of("counts")))
    for side, metric in (("head", "time"), ("base", "counts")):
        text = error_line(["ab", "--judge", str(whole), "--metric", metric], 2, capsys)
        assert text.startswith(f"dtdispatch: {side}: no run has values of --metric {metric}")
    (whole / "head/03-time.json").write_text(saved_text(run_of("counts", torch="2.12.0")))
    ends = f"{whole}/head: runs of several builds of torch: 2.12.0 abc, 2.13.0 abc"
    assert error_line(["ab", "--judge", str(whole)], 2, capsys).endswith(ends)


@pytest.mark.parametrize("words", [["--time-limit", "7"], ["--base", "x"], ["--keep", "x"], ["--", "tests"]])
def test_judge_accepts_only_rules(whole: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Saved runs can be judged again only with flags that change the rule."""
    text = error_line(["ab", "--judge", str(whole), *words], 2, capsys)
    assert text.endswith(f"runs: nothing is measured: leave {words[0]} out")


def test_times_beside_counts_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(fake_python(tmp_path, "good", runs=[counted({"t.py::test::step::misses": 1})]))
    sides = ["--base", good, "--head", good, "--keep", str(tmp_path / "runs")]
    assert main(["ab", *sides, "--metric", "counts"]) == 0
    capsys.readouterr()
    judge = ["ab", "--judge", str(tmp_path / "runs"), "--metric"]
    assert "its runs of times have few samples" in error_line([*judge, "time"], 2, capsys)
    assert main([*judge, "counts"]) == 0


def test_unwritable_file_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, saved = fake_python(tmp_path, "good"), tmp_path / "saved.json"
    saved.write_text('{"machine_info": {}}')
    (tmp_path / "runs/base").mkdir(parents=True)
    (tmp_path / "runs/base/01-time.json").touch()
    for flag, path, line in (
        ("--json", tmp_path / ("a" * 256), "cannot be written: File name too long"),
        ("--json", tmp_path / "nowhere" / "ab.json", "there is no folder"),
        ("--json", saved, "saved.json has another format: name another file, or remove it"),
        ("--keep", tmp_path / "runs", "runs: it has runs: name another folder"),
        ("--keep", saved, "saved.json: cannot be created: Not a directory"),
        ("--keep", tmp_path / ("a" * 256), "cannot be created: File name too long"),
    ):
        sides = ["--base", str(good), "--head", str(good)]
        assert line in error_line(["ab", *sides, flag, str(path)], 2, capsys)
    assert saved.read_text() == '{"machine_info": {}}'
    assert not calls(tmp_path)


def test_other_json_in_the_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/settings.json").touch()
    good = str(fake_python(tmp_path, "good", runs=[counted({"t.py::test::step::misses": 1})]))
    sides = ["--base", good, "--head", good]
    assert main(["ab", *sides, "--metric", "counts", "--keep", str(tmp_path)]) == 0
    assert len([*(tmp_path / "base").iterdir()]) == 2


def test_mistyped_commit_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--quiet")
    monkeypatch.chdir(tmp_path)
    error_line(["ab", "--base-rev", "nope", "--head-rev", "HEAD", "--keep", "runs"], 2, capsys)
    assert not (tmp_path / "runs").exists()
