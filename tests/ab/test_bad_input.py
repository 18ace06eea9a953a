"""Invalid requests and failed measurements are reported in one line, with separate exit statuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from tests.ab.fakes import calls, fake_python


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
        ([], "name both sides: --base PYTHON --head PYTHON"),
        (["--python", "x"], "name two interpreters or more: --python PYTHON --python PYTHON ..."),
        (["--python", "x", "--base", "y"], "--python names every side: leave --base, --head and commits out"),
        (["--python", sys.executable, "--python", "/nowhere"], "head /nowhere: is not an executable"),
        (["--base-rev", "HEAD"], "--base-rev and --head-rev go together"),
        (["--pairs", "0"], "argument --pairs: '0' is not a whole number of at least 1"),
        (
            ["--pairs", "2"],
            "--pairs 2, --confirm 8: --metric time needs at least 3 and 5",
        ),
        (["--confirm", "4"], "--pairs 3, --confirm 4: --metric time needs at least 3 and 5"),
        (["--pairs", "9"], "--pairs 9, --confirm 8: --metric time needs at least 3 and 9"),
        (["--passes", "3"], "--passes; each process runs its tests once: --pairs and --confirm set how many"),
        (["--floor", "hit=abc"], "argument --floor: 'hit=abc' is not floors: 'abc' is not a percentage"),
        (["--floor", "cold=5%"], "is not floors of hit and miss, such as hit=7.5%,miss=10%"),
        (["--floor", "hit=3_0%"], "'3_0%' is not a percentage above 0%"),
        (["--floor", "hit=5"], "'5' is not a percentage above 0%, such as 7.5%"),
        (["--control", "much"], "'much' is not a percentage above 0%, such as 7.5%, or off"),
        (["--base", "/nowhere/python", "--head", "x"], "base /nowhere/python: is not an executable"),
        (
            ["--base", __file__, "--head", sys.executable],
            "is not an executable: pass the python of an environment",
        ),
        (["--base-rev", "nonsense^^", "--head-rev", "HEAD"], "--base-rev nonsense^^: "),
        (["--metric", "speed"], "'speed' is not one of time, counts, instructions"),
        (
            ["--metric", "counts", "--floor", "hit=5%"],
            "--floor is for --metric time, and this compares counts",
        ),
        (["--metric", "counts", "--control", "off"], "counts are exact"),
        (["--judge=--"], "argument --judge: expected one argument, and -- is none"),
        (["--base", "a\udcff", "--head", "x"], r"base a\udcff: is not an executable"),
        (["--base", "\x1b[31m\r", "--head", "x"], r"base \x1b[31m\r: is not an executable"),
        (["--judge", "a" * 300], "cannot be read: File name too long"),
        (["--time-limit", "1e300"], "'1e300' is not a number of seconds above 0, and at most 1,000,000,000"),
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
        (
            {"plugin": ""},
            ": has no pytest-dtdispatch, but both sides need the version of this process: pip install pytest",
        ),
        ({"plugin": "0.0.1"}, ": has pytest-dtdispatch 0.0.1, but both sides need the version of this"),
        ({"torch": ""}, "has no torch"),
        (None, "is not a working Python interpreter: I am a teapot"),
    ],
)
def test_unusable_interpreter_is_refused(
    tmp_path: Path, probe: dict[str, str] | None, line: str, capsys: pytest.CaptureFixture[str]
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
        ("print('FAILED t.py::test_add - boom'); sys.exit(1)", "tests failed: FAILED t.py::test_add - boom"),
        ("sys.exit(0)", "measured nothing; its last output: "),
        ("open(os.environ['DTDISPATCH_AB_OUTPUT'], 'w').write('{'); sys.exit(0)", "its answer is invalid"),
        ("spec['only'] = {'values': {}}", "measured nothing: no test of it makes calls on DTensors"),
        ("spec['only'] = {'values': {'x': 'fast'}}", "its answer is invalid"),
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
def whole_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of the file of a completed run, whose interpreter is unchanged."""
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "ab.json"
    good = fake_python(folder, "good")
    assert main(["ab", "--base", str(good), "--head", str(good), "--json", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def whole(tmp_path: Path, whole_text: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a copy of that file, and discard the captured output."""
    path = tmp_path / "ab.json"
    path.write_text(whole_text)
    capsys.readouterr()
    return path


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "other.json is not JSON: Expecting "),
        ("[" * 100_000, "other.json is nested too deeply"),
        ("[]", 'not a file of dtdispatch ab: it has no "format": "pytest-dtdispatch ab"'),
        ('{"format": "something"}', "not a file of dtdispatch ab"),
        ('{"format": "pytest-dtdispatch ab", "version": 4}', "saved in format 4; this version reads 5"),
        ('{"format": "pytest-dtdispatch ab", "version": 99}', "saved in format 99; this version reads 5"),
        ('{"format": "pytest-dtdispatch ab", "version": 5}', "not whole: a Run without request"),
        ("\udcff", "other.json:1: this is not UTF-8 text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_judging_another_kind_of_file_is_refused(
    tmp_path: Path, content: str | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert line in error_line(["ab", "--judge", str(path)], 2, capsys)


NAN = float("nan")


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        (
            ("request", "rule"),
            {"floor_hit": NAN},
            "nan in place of a number up to 2**63 (floor_hit of a Rule)",
        ),
        (("request", "rule"), {"threshold": 0.0}, "threshold of 0.0"),
        (("request", "rule"), {"metric": "speed"}, "'speed' is not a valid Metric (metric of a Rule)"),
        (("request", "rule"), {"pairs": 0}, "--pairs 0, --confirm 8: --metric time needs at least 3"),
        (("request", "rule"), {"pairs": 10**12, "confirm": 10**12}, "its processes are not those of"),
        (("request", "rule"), {"metric": "counts", "confirm": 10**12}, "its processes are not those of"),
        (("request", "rule"), {"pairs": 3.5}, "no int: 3.5"),
        (("processes", 5, "is_profile"), True, "its processes are not those of"),
        (("request", "pythons"), ["one"], "versions of base, head, and interpreters of 1"),
        (("sides",), [17], "no dict: [17]"),
        (("processes", 0, "side"), "head", "its processes are not those of 3 pairs, and of at most 8"),
        (("processes", 0, "values"), [[["a", "b", "c"], NAN]], "(values of a ProcessSample)"),
        (("processes", 0, "details"), [[["a"], 7]], "no list: 7"),
        (("processes", 0, "values", 0, 1), 0.0, "time of 0.0"),
    ],
)
def test_file_with_impossible_values_is_refused(
    whole: Path, where: tuple[Any, ...], value: object, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = part = json.loads(whole.read_text())
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    whole.write_text(json.dumps(content))
    text = error_line(["ab", "--judge", str(whole)], 2, capsys)
    assert "not whole: " in text
    assert complaint in text


@pytest.mark.parametrize("words", [["--pairs", "7"], ["--base", "x"], ["--json", "x"], ["--", "tests"]])
def test_judge_accepts_only_rules(whole: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A file can be judged again only with flags that change the rule."""
    text = error_line(["ab", "--judge", str(whole), *words], 2, capsys)
    assert text.endswith(f"ab.json: nothing is measured: leave {words[0]} out")


def test_unwritable_file_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, saved = fake_python(tmp_path, "good"), tmp_path / "saved.json"
    saved.write_text('{"machine_info": {}}')
    for path, line in (
        (tmp_path / ("a" * 256), "cannot be written: File name too long"),
        (tmp_path / "nowhere" / "ab.json", "there is no folder"),
        (saved, "saved.json has another format: name another file, or remove it"),
    ):
        assert line in error_line(
            ["ab", "--base", str(good), "--head", str(good), "--json", str(path)], 2, capsys
        )
    assert saved.read_text() == '{"machine_info": {}}'
    assert not calls(tmp_path)
