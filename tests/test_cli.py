"""The command line: one line and status 2 for what cannot be obeyed, a page from what can."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that was said of a command line that cannot be obeyed."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dtdispatch: ")
    return err


def test_without_a_subcommand_it_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = said(capsys)
    assert "a subcommand is needed: ab, expected, report, watch" in text
    assert text.endswith("pytest --dtdispatch\n")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["--nonsense"], ["report"], ["report", "a.json", "--export"]]
)
def test_a_command_line_that_cannot_be_obeyed_is_told_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said(capsys)


HELP = """
import sys
from pytest_dtdispatch.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules and "pytest" not in sys.modules
"""


@pytest.mark.parametrize("words", [[], ["ab"], ["expected"], ["expected", "update"], ["report"], ["watch"]])
def test_every_command_answers_help_without_torch(words: list[str]) -> None:
    command = [sys.executable, "-c", HELP, *words, "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.startswith(f"usage: {' '.join(['dtdispatch', *words])} ")
    assert words or all(name in process.stdout for name in ("{watch,ab,expected,report}", "run a script"))


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dtdispatch {version('pytest-dtdispatch')}\n"


def test_the_package_runs_as_the_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest_dtdispatch", "nonsense"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("dtdispatch: ")
    assert process.stderr.count("\n") == 1


def test_an_interruption_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.parse_args", interrupted)
    assert main(["report", "a.json"]) == 130
    assert capsys.readouterr() == ("", "dtdispatch: interrupted\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no saved run: line 1: "),
        ('{"benchmarks": [], "machine_info": {}}', "is no saved run: nothing in it was measured"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_reported_is_told_in_one_line_and_writes_no_page(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "0001_base.json", tmp_path / "page.html"
    if text is not None:
        path.write_text(text)
    assert main(["report", str(path), "--export", f"html:{page}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dtdispatch: {path} {said}")
    assert not page.exists()
