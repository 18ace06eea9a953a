"""Our section of the terminal by verbosity, color and width, and progress beside the dots."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from itertools import takewhile
from pathlib import Path

import pytest

from pytest_dtdispatch.report.screen import ERASE, RESTORE, SAVE
from tests.plugin_runs import ADD, ALONE, IMPORTS, TEN_LINES, measure

pytestmark = pytest.mark.torch
pty = pytest.importorskip("pty")

COLOR = re.compile(r"\x1b\[[0-9;]*m")
SEVERAL = f"""{IMPORTS}
@pytest.mark.dtdispatch(mesh=(2, 2))
def test_several(dtdispatch, device_mesh):
    a = sharded(device_mesh, 64, 64)
    with dtdispatch.capture():
        b = torch.stack([a, a + a, a @ a])
        b.redistribute(placements=[Shard(0), Shard(1)])
    dtdispatch.call(torch.add, a, a, name="a sum")
"""


def section_of(result: pytest.RunResult) -> list[str]:
    """Return the lines of our section."""
    lines = result.outlines
    title, end = " dtdispatch ==", ("==", "\x1b[32m==")
    first, *after = lines[next(n for n, line in enumerate(lines) if title in line) :]
    return [first, *takewhile(lambda line: not line.startswith(end), after)]


def measured_section(pytester: pytest.Pytester, *args: str) -> list[str]:
    result = measure(pytester, "--benchmark-quiet", *args)
    assert result.ret == pytest.ExitCode.OK
    return section_of(result)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("PY_COLORS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_table_has_one_line_per_signature(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ten=TEN_LINES)
    plain = measured_section(pytester, "--color=no")
    _, _, test, line, proved, *_ = plain
    assert test == "test_ten.py::test_add (dispatch from below autograd)"
    assert re.fullmatch(rf"  {re.escape(ADD)}( +-?[\d,.]*){{7}} +2\+6( +noisy .*)?", line)
    assert not any(COLOR.search(line) for line in plain)
    coloured = measured_section(pytester, "--color=yes")
    assert f"\x1b[32m{proved}\x1b[0m" in "\n".join(coloured)
    to_proof = slice(5)  # the rest depends on the load of the machine
    first_words = [COLOR.sub("", line).split()[0] for line in coloured[to_proof]]
    assert first_words == [line.split()[0] for line in plain[to_proof]]


def test_verbosity_controls_the_section(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEVERAL)
    assert "no local row" not in "\n".join(measured_section(pytester))
    assert "no local row: " in "\n".join(measured_section(pytester, "-v"))
    shown = {flag: measure(pytester, "--benchmark-quiet", flag).stdout.str() for flag in ("-q", "-qq")}
    assert {flag: text.count(" are proved by the cache counters") for flag, text in shown.items()} == {
        "-q": 1,
        "-qq": 0,
    }
    assert "explains all" not in shown["-q"]


LISTS = f"""{IMPORTS}
def test_lists(dtdispatch, device_mesh):
    tensors = [sharded(device_mesh, 8, size) for size in range(1, 41)]
    with dtdispatch.capture():
        torch._foreach_add(tensors, tensors)
"""


def test_row_has_one_name_everywhere(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the same name in tables and files; files contain the full signature."""
    pytester.makepyfile(test_lists=LISTS)
    monkeypatch.setenv("COLUMNS", "80")
    files = ("--dtdispatch-export=csv:found.csv", "--benchmark-json=run.json")
    narrow = "\n".join(measured_section(pytester, "-v", *files))
    monkeypatch.delenv("COLUMNS")
    piped = "\n".join(measured_section(pytester))
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    names = {"narrow": narrow, "piped": piped, "csv": (pytester.path / "found.csv").read_text()}
    names |= {row["fullname"]: f"{row['name']} {row['fullname']}" for row in rows}
    digests = {where: {*re.findall("#[0-9a-f]{8}", text)} for where, text in names.items()}
    [digest] = digests["narrow"]
    assert digests == {where: {digest} for where in digests}
    whole = f"_foreach_add.List([{', '.join(f'f32[8,{size}]S0' for size in range(1, 41))}"
    assert {row["extra_info"]["signature"].startswith(whole) for row in rows} == {True}
    assert names["csv"].count(whole) == 2, "once for the hit and once for the miss"
    # A pipe has unlimited width: names are those of files.
    assert f"  {rows[0]['fullname'].split('::')[2]} " in piped


# Progress beside the dots: only on a terminal, never inside a test's output

SLOW = """
import time
from pytest_dtdispatch.core.text import show_progress

def test_slow(dtdispatch):
    print("mine")
    time.sleep(2.1)
    show_progress("half way")
    print("mine too")
    assert False
"""


def on_a_terminal(folder: Path, *args: str) -> str:
    """Run pytest on a pseudoterminal and return its output."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "CI": "", "COLUMNS": "80"}
    command = [sys.executable, "-m", "pytest", *ALONE, "--dtdispatch", "--color=no", *args]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, cwd=folder, env=environment, **streams)
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                written.append(chunk)
        except OSError:  # Linux raises it at end of file
            pass

    reader = threading.Thread(target=read)
    reader.start()
    process.wait(120)
    reader.join(10)
    os.close(ours)
    return b"".join(written).decode().replace("\r\n", "\n")


@pytest.mark.long
def test_progress_appears_beside_dots_and_is_erased(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    written = on_a_terminal(tmp_path)
    assert f"test_slow.py {SAVE} half way{ERASE}{RESTORE}{ERASE}F" in written
    assert "Captured stdout call -----------------------------\nmine\nmine too\n" in written


@pytest.mark.long
def test_progress_is_absent_when_tests_write_output(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    for flag in ("-s", "-olog_cli=true"):
        assert "half way" not in on_a_terminal(tmp_path, flag).replace('show_progress("half way")', "")
