"""The command line, which has no subcommands yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_dtdispatch.cli import main


@pytest.mark.parametrize("arguments", [None, [], ["ab"], ["--help"]])
def test_the_command_says_in_one_line_what_to_type_instead(
    arguments: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("pytest --dtdispatch\n")


def test_the_package_runs_as_the_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest_dtdispatch", "compare"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("dtdispatch: ")
    assert process.stderr.count("\n") == 1
