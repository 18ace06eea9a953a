"""Files are written whole, or not at all, and nothing but a file of the same kind is replaced."""

from __future__ import annotations

import os
import pty
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pytest_dtdispatch.core.files import (
    EXPECTED,
    RECORDS,
    RESULTS,
    SOMETHING_ELSE,
    checked_target,
    form_of,
    read_text,
    write_atomic,
)
from pytest_dtdispatch.errors import DtDispatchError

NOBODY = 65534
ROW = "test_it.py::test_add::add,dispatch_hit_ns,6940\n"


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Be somebody else, and come back."""
    if user == os.geteuid():
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setresgid(user, user, 0)
    os.setresuid(user, user, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give a private folder of root, and one of somebody else, as far as who runs the tests can be both."""
    user = request.param
    if os.geteuid() != 0:
        if user == 0:
            pytest.skip("needs root")
        user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        if user != os.geteuid():
            os.chown(name, user, user)
        with as_user(user):
            yield Path(name)


def refusal(path: Path, form: str = "") -> str:
    """Return the one line by which a place is refused."""
    with pytest.raises(DtDispatchError) as raised:
        checked_target(path, form)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def put(path: Path, text: str = "new") -> None:
    checked_target(path)
    write_atomic(path, text)


def kind(path: Path) -> int:
    return stat.S_IFMT(path.lstat().st_mode)


def test_a_file_is_written_and_nothing_is_left_beside_it(folder: Path) -> None:
    path = folder / "page.md"
    put(path, "née\n")
    put(path, "three\n")
    put(folder / f"{'x' * 251}.csv", "a name of the longest length\n")
    assert path.read_text(encoding="utf-8") == "three\n"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/page.md", "there is no folder"),
        ("", "is a folder: name a file"),
        ("/proc/page.md", "its folder cannot be written to"),
        ("test_it.py", "test_it.py is a name of Python code: name another file"),
        ("x" * 256, "cannot be written: File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_in_one_line(
    tmp_path: Path, name: str, says: str
) -> None:
    assert says in refusal(tmp_path / name)


def test_a_read_only_file_is_refused_as_root_too(folder: Path) -> None:
    path = folder / "page.md"
    path.write_text("kept", encoding="utf-8")
    path.chmod(0o444)
    assert refusal(path).endswith("page.md is read-only")


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("née", encoding="utf-8")
    assert read_text(path, 4, "too large") == "née"
    with pytest.raises(ValueError, match=r"^too large$"):
        read_text(path, 3, "too large")


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    path.write_text("kept", encoding="utf-8")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DtDispatchError, match=r"page\.md cannot be written: No space left on device"):
        write_atomic(path, "new")
    assert path.read_text(encoding="utf-8") == "kept"
    assert list(tmp_path.iterdir()) == [path]


# What is no regular file


def test_a_pipe_is_written_into_and_stays(folder: Path) -> None:
    path, read = folder / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    while not read and reader.is_alive():
        with suppress(DtDispatchError):  # the reader has not come yet
            put(path, "x" * 200_000)  # more than a pipe holds
            break
    reader.join()
    assert read == ["x" * 200_000]
    assert stat.S_ISFIFO(kind(path))


def test_a_pipe_that_nobody_reads_is_not_waited_for(folder: Path) -> None:
    path = folder / "pipe"
    os.mkfifo(path)
    with pytest.raises(DtDispatchError, match=r"pipe cannot be written: nobody reads this pipe$"):
        put(path)
    assert stat.S_ISFIFO(kind(path))


def test_a_terminal_is_written_into() -> None:
    ours, theirs = pty.openpty()
    try:
        path = Path(os.ttyname(theirs))
        put(path, "seen\n")
        assert os.read(ours, 100) == b"seen\r\n"
        assert stat.S_ISCHR(kind(path))
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_device_is_not_replaced(folder: Path) -> None:
    null, disk = folder / "null", folder / "disk"
    with as_root():
        try:
            os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            os.mknod(disk, stat.S_IFBLK | 0o666, os.makedev(240, 250))  # of no driver
            null.chmod(0o666)
            null.open("w").close()
        except PermissionError as error:
            pytest.skip(f"makes a device: {error}")
    put(null)
    assert stat.S_ISCHR(kind(null))
    assert refusal(disk) == f"{disk} is a block device: name a file"


@contextmanager
def as_root() -> Iterator[None]:
    """Be root within a test of somebody else."""
    user = os.geteuid()
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_socket_is_refused(folder: Path) -> None:
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert refusal(path) == f"{path} is a socket: name a file"
        with pytest.raises(DtDispatchError, match="is a socket"):
            write_atomic(path, "new")


def test_the_file_that_the_command_prints_to_is_refused(tmp_path: Path) -> None:
    code = "from pathlib import Path; from pytest_dtdispatch.core.files import checked_target as check\n"
    code += "try: check(Path('/dev/stdout'))\nexcept Exception as error: print('said:', error)"
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    said = (tmp_path / "log").read_text()
    assert said == "said: /dev/stdout is the file that this command prints to: name another file\n"


# Links, owners, modes


def test_the_target_of_a_link_is_replaced_and_not_the_link(folder: Path) -> None:
    (folder / "below").mkdir()
    real, link, dangling = folder / "below" / "real", folder / "link", folder / "dangling"
    real.write_text("old")
    link.symlink_to("below/real")
    dangling.symlink_to("below/new")
    put(link, "new")
    put(dangling, "made")
    assert (real.read_text(), (folder / "below" / "new").read_text()) == ("new", "made")
    assert link.is_symlink()
    assert dangling.is_symlink()
    (folder / "nowhere").symlink_to("no/file")
    assert "there is no folder" in refusal(folder / "nowhere")
    (folder / "round").symlink_to("round")
    assert "Too many levels of symbolic links" in refusal(folder / "round")


def test_mode_and_owner_are_kept(folder: Path) -> None:
    path = folder / "rows"
    path.write_text("old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    before = path.stat()
    put(path, "longer than it was")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


# What is something else


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", ""),
        (ROW, ""),
        ('"t.py::test_a::add(S0, S0)",misses_per_step,0\n', ""),
        (f"# hits\n\n{ROW.strip()},0.1\n", "expected results"),
        (f"{ROW.strip()},0.1,why\n", "expected results"),
        ('{\n    "machine_info": {}, "benchmarks": []}', "a saved run of pytest-benchmark"),
        ('[\n {\n  "benchmark": {"name": "x"}}]', "records of PyTorch's benchmark database"),
        ('{"format": "pytest-dtdispatch ab", "version": 1}', "a run of dtdispatch ab"),
        ("name,score,class\nann,5,b\n", "something else"),
        ("ann,math,5\n", "something else"),
        ("def test_add(): pass\n", "something else"),
        ("\0\xff" * 10, "something else"),
        ('"open', "something else"),
    ],
)
def test_a_file_that_is_no_earlier_one_is_not_written_over(tmp_path: Path, text: str, holds: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="latin-1")
    if holds:
        line = f"{path} holds {holds}, not results: name another file, or remove it"
        assert refusal(path, RESULTS) == line
    else:
        checked_target(path, RESULTS)
    if text and holds != RECORDS:
        assert "not records of PyTorch's benchmark database" in refusal(path, RECORDS)


def test_a_limit_on_the_size_of_files_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(DtDispatchError, match="File too large"):
            write_atomic(path, "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("beginning", "form"),
    [
        (ROW, RESULTS),
        ('t.py::test_a::add,dispatch_hit_ns,6940,"add([f32[8]R*40], f32[8]R)@4"\n', RESULTS),
        ("t.py::test_a::add,dispatch_hit_ns,6940,0\n", EXPECTED),
        ("# why\n\nt.py::test_a::add,dispatch_hit_ns,6940,1e-3,slower\n", EXPECTED),
        ("", SOMETHING_ELSE),
    ],
)
def test_rows_are_told_by_their_fields(beginning: str, form: str) -> None:
    assert form_of(beginning) == form
