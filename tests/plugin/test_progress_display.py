"""Progress beside the dots: on a terminal alone, and in no test's output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_dtdispatch.report.screen import ERASE, RESTORE, SAVE
from tests.plugin_runs import ALONE

pytestmark = [pytest.mark.torch, pytest.mark.long]
pty = pytest.importorskip("pty")

SLOW = """
import time
from pytest_dtdispatch.core.text import tell

def test_slow(dtdispatch):
    print("mine")
    time.sleep(2.1)
    tell("half way")
    print("mine too")
    assert False
"""


def on_a_terminal(folder: Path, *args: str, **variables: str) -> str:
    """Run pytest on a terminal, and give all that it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "CI": "", "COLUMNS": "80", **variables}
    command = [sys.executable, "-m", "pytest", *ALONE, "--dtdispatch", "--color=no", *args]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                written.append(chunk)
        except OSError:  # Linux says so at the end
            pass

    reader = threading.Thread(target=read)
    reader.start()
    process.wait(120)
    reader.join(10)
    os.close(ours)
    return b"".join(written).decode().replace("\r\n", "\n")


def test_progress_stands_beside_the_dots_and_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    written = on_a_terminal(tmp_path)
    assert f"test_slow.py {SAVE} half way{ERASE}{RESTORE}{ERASE}F" in written
    assert "Captured stdout call -----------------------------\nmine\nmine too\n" in written


@pytest.mark.parametrize("flags", [("-s",), ("-olog_cli=true",)])
def test_there_is_none_where_a_test_writes_to_the_terminal(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    assert "half way" not in on_a_terminal(tmp_path, *flags).replace('tell("half way")', "")


def test_there_is_none_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    assert SAVE not in on_a_terminal(tmp_path, CI="true")
