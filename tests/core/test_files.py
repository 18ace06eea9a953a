"""Files are written completely or not at all, and replace only files of the same format."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_dtdispatch.core import files
from pytest_dtdispatch.core.files import checked_target, locked, read_text, write_atomic
from pytest_dtdispatch.errors import DtDispatchError


def refusal(path: Path, begins: str = "") -> str:
    """Return the one-line error that refuses a path."""
    with pytest.raises(DtDispatchError) as raised:
        checked_target(path, begins)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def write(path: Path, text: str = "new") -> None:
    checked_target(path)
    write_atomic(path, text)


def test_written_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    for text in ("née\n", "three\n"):
        write(path, text)
        assert path.read_text(encoding="utf-8") == text
    write(tmp_path / f"{'x' * 251}.csv", "a name of the longest length\n")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/page.md", "there is no folder"),
        ("", "is a folder: name a file"),
        ("/proc/page.md", "its folder cannot be written to"),
        ("test_it.py", "test_it.py is a name of Python code: name another file"),
        ("x" * 256, "cannot be written: File name too long"),
        ("read_only", "read_only is read-only"),  # root can write to it
        ("socket", "socket is a socket: name a file"),
        ("to_nowhere", "there is no folder"),
        ("round", "Too many levels of symbolic links"),
    ],
)
def test_unwritable_path_is_refused_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "read_only").touch(mode=0o444)
    (tmp_path / "to_nowhere").symlink_to("no/file")
    (tmp_path / "round").symlink_to("round")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert message in refusal(tmp_path / name)


def test_file_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("née", encoding="utf-8")
    monkeypatch.setattr(files, "MAX_BYTES", 4)
    assert read_text(path) == "née"
    path.write_text("née.", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.csv has more than 0 MiB$"):
        read_text(path)


def test_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    with pytest.raises(DtDispatchError, match=r"pipe cannot be written: nobody reads this pipe$"):
        write(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    while not read and reader.is_alive():
        with suppress(DtDispatchError):  # the reader is not open yet
            write(path, "x" * 200_000)  # more than the capacity of a pipe
            break
    reader.join()
    assert read == ["x" * 200_000]
    assert path.is_fifo()


def test_terminal_is_written() -> None:
    ours, theirs = pty.openpty()
    try:
        path = Path(os.ttyname(theirs))
        write(path, "seen\n")
        assert os.read(ours, 100) == b"seen\r\n"
        assert path.is_char_device()
    finally:
        os.close(ours)
        os.close(theirs)


def test_file_open_as_stdout_is_refused(tmp_path: Path) -> None:
    code = "from pathlib import Path; from pytest_dtdispatch.core.files import checked_target as check\n"
    code += "try: check(Path('/dev/stdout'))\nexcept Exception as error: print('said:', error)"
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    output = (tmp_path / "log").read_text()
    assert output == "said: /dev/stdout is the file that this command prints to: name another file\n"


def test_link_target_is_replaced_but_not_link(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name, text in (("old", "new"), ("missing", "made")):
        link = tmp_path / f"to_{name}"
        link.symlink_to(f"below/{name}")
        (tmp_path / "below" / "old").write_text("old")
        write(link, text)
        assert (tmp_path / "below" / name).read_text() == text
        assert link.is_symlink()


def test_mode_and_owner_are_preserved(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    before = path.stat()
    write(path, "longer than it was")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert stat.S_ISREG(after.st_mode)


def test_file_size_limit_leaves_old_contents(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(DtDispatchError, match=r"rows\.csv cannot be written: File too large"):
            write_atomic(path, "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("text", "begins"), [("", "new"), ("\ufeffnew\n", "ne[wx]"), ("a\nb", "(?s)a.b")])
def test_earlier_file_is_recognized_by_its_beginning(tmp_path: Path, text: str, begins: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    checked_target(path, begins)


@pytest.mark.parametrize("text", ["def test_add(): pass\n", "no new\n", "\0\xff" * 10, " "])
def test_unrecognized_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="latin-1")
    assert refusal(path, "new") == f"{path} has another format: name another file, or remove it"


def test_locked_folder_is_free_afterwards(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    with locked(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_folder_is_used_unlocked_without_fcntl(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['fcntl'] = None\n"  # as on Windows
        "import pathlib, pytest_dtdispatch.plugin.session\n"
        "from pytest_dtdispatch.core.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('used')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("used\n", "")
