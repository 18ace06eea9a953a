"""The command line: invalid commands end with one line and status 2, valid ones write a page."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main

COMMANDS = "ab, expected, report, skill, watch"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], f"a command is needed: {COMMANDS}"),
        (["nonsense"], f"'nonsense' is not a command: {COMMANDS}\n"),
        (["wach", "a.py"], f"'wach' is not a command: {COMMANDS}; did you mean watch?\n"),
        (["--nonsense"], ""),
        (["report"], ""),
        (["report", "a.json", "--export"], ""),
        (["expected"], ""),
        (["expected", "update"], ""),
        (["expected", "update", "f.csv"], ""),
        (["expected", "update", "f.csv", "--results=r.csv"], "the following arguments are required"),
        (["expected", "rebase", "f.csv"], ""),
        (["watch"], "one of the arguments SCRIPT.py -m is required"),
        (["watch", "--budget"], "one of the arguments SCRIPT.py -m is required"),
        (["watch", "-m"], "argument -m: expected one argument"),
        (["watch", "--budget=3", "a.py"], "argument --budget: ignored explicit argument '3'"),
        (["watch", "--budge", "--nonsense", "a.py"], "unrecognized arguments: --nonsense\n"),
        (["watch", "--budjet", "a.py"], "unrecognized arguments: --budjet; did you mean --budget?\n"),
        (["watch", "--stop", "a.py"], "watch --stop has no limits: add --max, such as --max misses=0\n"),
        (["watch", "--max", "misses=0"], "one of the arguments SCRIPT.py -m is required"),
        (
            ["watch", "--max", "collectives=0", "a.py"],
            "argument --max: 'collectives=0' is not a list of limits such as misses=0,cache_growth=4: "
            "whole numbers from 0 to 2**63-1 by name, each once, of misses, cache_growth\n",
        ),
        (["watch", "--max=mises=0", "a.py"], "argument --max: 'mises=0' is not a list of limits such as "),
        (["watch", "--warmup=-1", "a.py"], "argument --warmup: '-1' is not a whole number of at least 0"),
        (["ab", "--hed", "x"], "unrecognized arguments: --hed; did you mean --head?\n"),
        (["report", "--exprt=html:x"], "unrecognized arguments: --exprt; did you mean --export?\n"),
        (["expected", "update", "--reasn"], "unrecognized arguments: --reasn; did you mean --reason?\n"),
    ],
)
def test_invalid_command_line_is_a_one_line_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"dtdispatch: {message}")
    assert words or err.endswith("pytest --dtdispatch\n")


HELP = """
import contextlib, sys
from pytest_dtdispatch.cli import main
for words in ([], ["ab"], ["expected"], ["expected", "update"], ["report"], ["skill"], ["watch"]):
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
assert "torch" not in sys.modules and "pytest" not in sys.modules
"""


def test_every_command_answers_help_without_torch() -> None:
    text = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True).stdout
    pages = text.split("usage: dtdispatch ")
    assert [page.partition(" ")[0] for page in pages[2:]] == [
        *("ab", "expected", "expected", "report", "skill", "watch")
    ]
    assert all("\nexample:\n  " in page and "\nexit status:\n  " in page for page in pages[2:])
    assert re.findall(r"^    (\w+)", pages[1], re.MULTILINE) == COMMANDS.split(", ")
    assert "[-- PYTEST ARGUMENTS]" in pages[2]


def test_package_runs_as_command_and_prints_version() -> None:
    command = [sys.executable, "-m", "pytest_dtdispatch", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == f"dtdispatch {version('pytest-dtdispatch')}\n"


def test_skill_prints_the_path_of_the_page_for_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    [path] = capsys.readouterr().out.splitlines()
    assert Path(path).read_text().startswith("---\nname: pytest-dtdispatch\n")
    assert (Path(path).parent / "docs" / "_static" / "results.schema.json").is_file()


def test_interruption_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.parse_args", interrupted)
    assert main(["report", "a.json"]) == 130
    assert capsys.readouterr() == ("", "dtdispatch: interrupted\n")


UNREAD = """
import os, sys
from unittest.mock import patch
from pytest_dtdispatch import cli
from pytest_dtdispatch.report.screen import say
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
with patch.object(cli, "_run", lambda words: say("a report")):
    sys.exit(cli.main([]))
"""


def test_output_that_nobody_reads_is_no_error() -> None:
    """The reader of a pipe may end first, as ``dtdispatch report ... | head`` does."""
    process = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{", "is not JSON: "),
        ('{"benchmarks": [], "machine_info": {}}', "is not a saved run: nothing in it was measured"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_unreadable_run_is_refused_and_writes_no_page(
    text: str | None, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "0001_base.json", tmp_path / "page.html"
    if text is not None:
        path.write_text(text)
    assert main(["report", str(path), "--export", f"html:{page}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dtdispatch: {path} {output}")
    assert not page.exists()
