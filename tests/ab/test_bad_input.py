"""What cannot be obeyed or measured is told in one line, with a status of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from tests.ab.fakes import ROW, calls, fake_python


def said(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; return the one line that it says beside its progress."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("screen: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("dtdispatch: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name both sides: --base PYTHON --head PYTHON"),
        (["--base", sys.executable], "name both sides"),
        (["--base-rev", "HEAD"], "--base-rev and --head-rev go together"),
        (["--pairs", "0"], "argument --pairs: '0' is not a whole number of at least 1"),
        (["--confirm", "x"], "argument --confirm: 'x' is not a whole number"),
        (["--floor", "hit=abc"], "argument --floor: 'hit=abc' is not floors: 'abc' is not a percentage"),
        (["--floor", "hit"], "is not floors of hit and miss, such as hit=7.5%,miss=10%"),
        (["--floor", "cold=5%"], "is not floors of hit and miss"),
        (["--floor", "hit=3_0%"], "'3_0%' is not a percentage above 0%"),
        (["--floor", "hit=-5%"], "'-5%' is not a percentage above 0%"),
        (["--floor", "hit=5"], "'5' is not a percentage above 0%, such as 7.5%"),
        (["--floor", "hit=nan%"], "'nan%' is not a percentage above 0%"),
        (["--control", "much"], "'much' is not a percentage above 0%, such as 7.5%, or off"),
        (["--time-limit", "0"], "'0' is not a number of seconds above 0"),
        (
            ["--base", "/nowhere/python", "--head", sys.executable],
            "--base /nowhere/python: this interpreter does",
        ),
        (["--base", __file__, "--head", sys.executable], "this interpreter is no program"),
        (["--base-rev", "nonsense^^", "--head-rev", "HEAD"], "--base-rev nonsense^^: "),
    ],
)
def test_a_command_line_that_cannot_be_obeyed(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in said(["ab", *words], 2, capsys)


@pytest.mark.parametrize(
    ("probe", "line"),
    [
        ({"plugin": ""}, "has no pytest-dtdispatch; install it there: pip install pytest-dtdispatch=="),
        ({"plugin": "0.0.1"}, "has pytest-dtdispatch 0.0.1, and this is "),
        ({"torch": ""}, "has no torch"),
    ],
)
def test_an_interpreter_that_cannot_measure(
    tmp_path: Path, probe: dict[str, str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = fake_python(tmp_path, "good"), fake_python(tmp_path, "bad", probe=probe)
    text = said(["ab", "--base", str(good), "--head", str(bad)], 2, capsys)
    assert f"--head {bad}: " in text
    assert line in text
    assert not calls(tmp_path)


def test_an_interpreter_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho 'I am a teapot' >&2\nexit 7\n")
    bad.chmod(0o755)
    text = said(["ab", "--base", str(bad), "--head", str(bad)], 2, capsys)
    assert text.endswith("is no python that runs: I am a teapot")


@pytest.mark.parametrize(
    ("does", "line"),
    [
        ("os.kill(os.getpid(), 11)", "died of SIGSEGV"),
        ("print('ImportError: broken'); sys.exit(3)", "exit status 3: ImportError: broken"),
        ("sys.exit(5)", "no test was collected"),
        ("print('FAILED t.py::test_add - boom'); sys.exit(1)", "tests failed: FAILED t.py::test_add - boom"),
        ("sys.exit(0)", "measured nothing, and said last: "),
        ("open(os.environ['DTDISPATCH_AB_OUTPUT'], 'w').write('{'); sys.exit(0)", "wrote something else"),
        ("told['only'] = {'rows': {}}", "measured nothing: no test of it makes calls on DTensors"),
        (
            "told['only'] = {'rows': {'x': {'medians_ns': [], 'quietest_ns': 1, 'samples': 1}}}",
            "something else",
        ),
        ("time.sleep(600)", "not over after 0.5 s, and was ended: --time-limit"),
    ],
)
def test_a_process_that_does_not_measure_ends_the_run_and_its_log_is_named(
    tmp_path: Path, does: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "0.5" if "sleep" in does else "60"
    good, bad = fake_python(tmp_path, "good"), fake_python(tmp_path, "bad", does=does)
    text = said(["ab", "--base", str(good), "--head", str(bad), "--time-limit", limit], 5, capsys)
    assert f"--head {bad}: " in text
    assert line in text
    assert Path(text.rpartition("log: ")[2]).exists()
    assert calls(tmp_path) == ["good", "bad"]


@pytest.fixture(scope="module")
def whole_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a run that is over, whose interpreter stays what it was."""
    folder = tmp_path_factory.mktemp("whole")
    path = folder / "ab.json"
    good = fake_python(folder, "good")
    assert main(["ab", "--base", str(good), "--head", str(good), "--json", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def whole(tmp_path: Path, whole_text: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """A copy of that file; what was said of the run is forgotten."""
    path = tmp_path / "ab.json"
    path.write_text(whole_text)
    capsys.readouterr()
    return path


def test_a_file_to_resume_that_is_cut_off(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert "no JSON, or cut off" in said(["ab", "--resume", str(path)], 2, capsys)
    assert path.read_text() == text[: len(text) // 2]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "no JSON, or cut off"),
        ("[]", "no file of dtdispatch ab or matrix"),
        ('{"benchmarks": []}', "no file of dtdispatch ab or matrix"),
        ('{"format": "pytest-dtdispatch ab", "version": 99}', "version 99 of the format"),
        ('{"format": "pytest-dtdispatch ab", "version": 1}', "not whole: KeyError: 'asked'"),
        ("[" * 100_000, "no JSON, or cut off"),
    ],
)
def test_a_file_to_resume_that_is_something_else(
    tmp_path: Path, content: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    assert line in said(["ab", "--resume", str(path)], 2, capsys)


def test_a_file_to_resume_that_is_not_text_or_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    assert "cannot be read: No such file" in said(["ab", "--resume", str(path)], 2, capsys)
    path.write_bytes(b"\xff\xfe\x00")
    assert "no text" in said(["ab", "--resume", str(path)], 2, capsys)


def test_a_file_of_another_version_or_other_settings(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(["ab", "--resume", str(whole), "--pairs", "7"], 2, capsys)
    assert "it was measured with pairs=5, not 7" in text


def test_a_file_of_another_interpreter(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads(whole.read_text())["asked"]["base"]
    other = fake_python(tmp_path, "good", probe={"torch": "2.12.0"})
    whole.write_text(whole.read_text().replace(good, str(other)))
    text = said(["ab", "--resume", str(whole)], 2, capsys)
    assert "base was measured with torch '2.13.0', and this is '2.12.0'" in text


@pytest.mark.parametrize("key", ["asked", "sides", "processes"])
def test_a_file_to_resume_with_a_part_of_another_kind(
    whole: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole.write_text(json.dumps({**json.loads(whole.read_text()), key: [17]}))
    assert "not whole: " in said(["ab", "--resume", str(whole)], 2, capsys)


NAN = float("nan")


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        (("asked", "floor_hit"), NAN, "floor_hit of nan"),
        (("asked", "floor_miss"), -0.1, "floor_miss of -0.1"),
        (("asked", "floor_hit"), 0.0, "floor_hit of 0.0"),
        (("asked", "control"), NAN, "control of nan"),
        (("asked", "control"), -1.0, "control of -1.0"),
        (("asked", "pairs"), 0, "a whole number of at least 1"),
        (("asked", "confirm"), -3, "a whole number of at least 1"),
        (("asked", "passes"), 2.7, "a whole number of at least 1"),
        (("processes", 0, "seconds"), NAN, "a number of seconds above 0"),
        (("processes", 0, "seconds"), -1.0, "a number of seconds above 0"),
        (("processes", 0, "rows", f"{ROW}::hit", "quietest_ns"), NAN, "latencies of"),
        (("processes", 0, "rows", f"{ROW}::hit", "quietest_ns"), 0.0, "latencies of"),
        (("processes", 0, "rows", f"{ROW}::hit", "quietest_ns"), -5.0, "latencies of"),
        (("processes", 0, "rows", f"{ROW}::hit", "medians_ns"), [NAN], "latencies of"),
        (("processes", 0, "rows", f"{ROW}::hit", "samples"), -1, "a whole number of at least 1"),
        (("processes", 0, "side"), "head", "the processes of its screen are not 5 pairs in turns"),
        (("asked", "pairs"), 4, "the processes of its screen are not 4 pairs in turns"),
    ],
)
def test_a_figure_to_resume_from_that_none_can_be(
    whole: Path, where: tuple[Any, ...], value: object, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = part = json.loads(whole.read_text())
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    whole.write_text(json.dumps(content))
    text = said(["ab", "--resume", str(whole)], 2, capsys)
    assert "not whole: " in text
    assert complaint in text


def test_a_file_to_resume_may_begin_with_a_byte_order_mark(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole.write_text(f"\ufeff{whole.read_text()}", encoding="utf-8")
    assert main(["ab", "--resume", str(whole)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("flag", ["--resume", "--json", "--pairs", "--base"])
def test_two_dashes_are_no_value_of_a_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {flag}: expected one argument, and -- is none" in said(["ab", f"{flag}=--"], 2, capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--base", "a" * 300, "--head", "x"], "this interpreter does not exist"),
        (["--base", "a\udcff", "--head", "x"], r"--base a\udcff: this interpreter does not exist"),
        (["--base", "\x1b[31m\r", "--head", "x"], r"--base \x1b[31m\r: this interpreter does not exist"),
        (["--resume", "a" * 300], "cannot be read: File name too long"),
        (["--time-limit", "1e300"], "'1e300' is not a number of seconds above 0, and at most 1,000,000,000"),
        (["--pairs", "9" * 5000], "9..."),
        (["--\x1b[31mfoo"], r"unrecognized arguments: --\x1b[31mfoo"),
    ],
)
def test_words_that_no_terminal_and_no_file_system_takes(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(["ab", *words], 2, capsys)
    assert line in text
    assert text.isprintable()


def test_a_file_of_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = fake_python(tmp_path, "good")
    words = ["ab", "--base", str(good), "--head", str(good), "--json", str(tmp_path / ("a" * 256))]
    assert "cannot be written: File name too long" in said(words, 2, capsys)
    assert not calls(tmp_path)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = fake_python(tmp_path, "good")
    words = ["ab", "--base", str(good), "--head", str(good), "--json", str(tmp_path / "nowhere" / "ab.json")]
    assert "there is no folder" in said(words, 2, capsys)
    assert not calls(tmp_path)


def test_a_file_of_something_else_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, saved = fake_python(tmp_path, "good"), tmp_path / "saved.json"
    saved.write_text('{"machine_info": {}}')
    text = said(["ab", "--base", str(good), "--head", str(good), "--json", str(saved)], 2, capsys)
    assert (
        "saved.json holds a saved run of pytest-benchmark, not a run of dtdispatch ab or matrix: name" in text
    )
    assert saved.read_text() == '{"machine_info": {}}'
    assert not calls(tmp_path)
