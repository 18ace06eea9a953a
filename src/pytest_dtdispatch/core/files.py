"""Read a file of a bounded size; write a file whole, or leave the one that is there.

What is moved into place is a regular file in place of a regular file: a pipe or a terminal is written into.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from pytest_dtdispatch.core.forms import form_of
from pytest_dtdispatch.errors import DtDispatchError

BEGINNING = 2**16  # characters that tell what a file is
_PART = re.compile(r"\.dtdispatch-[0-9a-f]{16}\.part")
_REFUSED = {stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device"}


def read_text(path: Path, most_bytes: int, too_large: str) -> str:
    """Read a file from anywhere; a ValueError with these words refuses a larger one."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(too_large)
    return data.decode("utf-8-sig")  # some editors begin a file with a mark


def checked_target(path: Path, form: str = "") -> None:
    """Check that a file can be written, before hours of work are lost on one that cannot.

    Args:
        path: of the file.
        form: what it will hold, of ``core.forms``: a file that holds anything else is refused. Empty where
            the file is read before it is written.

    Raises:
        DtDispatchError: in one line, what is there or why it cannot be written.
    """
    try:
        status = _status(path)
        if path.suffix == ".py":
            raise DtDispatchError(f"{path} is a name of Python code: name another file")
        if status is None or stat.S_ISREG(status.st_mode):
            _check_place(path)
        if status is None:
            return
        if not (status.st_mode & 0o222 and os.access(path, os.W_OK)):
            raise DtDispatchError(f"{path} is read-only")  # root too would overwrite it unasked
        if form and stat.S_ISREG(status.st_mode) and status.st_size:
            with path.open(encoding="utf-8", errors="replace") as file:
                found = form_of(file.read(BEGINNING))
            if found != form:
                raise DtDispatchError(f"{path} holds {found}, not {form}: name another file, or remove it")
    except OSError as error:
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place, and move it there: what was there is lost only when all is written."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        status = _status(path)
        if status is None or stat.S_ISREG(status.st_mode):
            _put(Path(os.path.realpath(path)), status, data)
        else:
            _stream(path, data)
    except OSError as error:
        no_reader = error.errno == errno.ENXIO and path.is_fifo()
        why = "nobody reads this pipe" if no_reader else error.strerror
        raise DtDispatchError(f"{path} cannot be written: {why}") from None


def _status(path: Path) -> os.stat_result | None:
    """Ask what a path leads to, None where there is nothing; refuse what is no place for a file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if kind := _REFUSED.get(stat.S_IFMT(status.st_mode)):
        raise DtDispatchError(f"{path} is a {kind}: name a file")
    if stat.S_ISREG(status.st_mode) and _is_own_output(status):
        raise DtDispatchError(f"{path} is the file that this command prints to: name another file")
    return status


def _is_own_output(status: os.stat_result) -> bool:
    """Tell whether stdout or stderr goes to a file: what is printed later would be lost with it."""
    for file in (1, 2):
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(file)):
                return True
    return False


def _check_place(path: Path) -> None:
    """Check that there is a folder, and that files can be made there."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise DtDispatchError(f"{path}: there is no folder {folder}")
    try:
        part, file = _open_part(folder)
    except OSError as error:
        raise DtDispatchError(f"{path}: its folder cannot be written to: {error.strerror}") from None
    os.close(file)
    part.unlink(missing_ok=True)


def _put(path: Path, status: os.stat_result | None, data: bytes) -> None:
    """Write a regular file: by a move, or into the one that is there where a move would make it another."""
    _remove_leftovers(path.parent)
    part, file = _open_part(path.parent)
    try:
        _write_all(file, data)
        if status is None or _is_made_alike(file, status):
            part.replace(path)
        else:
            _overwrite(path, data)
    finally:
        os.close(file)
        part.unlink(missing_ok=True)


def _is_made_alike(file: int, status: os.stat_result) -> bool:
    """Give a part the owner and the mode of the file that it replaces, if it can stand for it."""
    try:
        if status.st_nlink > 1:
            return False
        os.fchown(file, status.st_uid, status.st_gid)
        os.fchmod(file, stat.S_IMODE(status.st_mode))
    except PermissionError:  # somebody else's file, which we may write to
        return False
    return True


def _overwrite(path: Path, data: bytes) -> None:
    """Write into a file that must stay the same one: it has another name, or an owner that we cannot give.

    A full disk is met before anything is lost. A process that is killed within the last lines leaves the
    beginning of the new text before the rest of the old one.
    """
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _write_all(file.fileno(), data[size:])
        except BaseException:
            file.truncate(size)
            raise
        file.seek(0)
        _write_all(file.fileno(), data[:size])
        file.truncate(len(data))


def _stream(path: Path, data: bytes) -> None:
    """Write into a pipe, a terminal or /dev/null; a pipe that nobody reads is an error, not a wait."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), "wb", buffering=0) as stream:
        os.set_blocking(stream.fileno(), True)
        _write_all(stream.fileno(), data)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _open_part(folder: Path) -> tuple[Path, int]:
    """Open a file to be moved into place. Its lock ends with this process, however that ends."""
    while True:
        part = folder / f".dtdispatch-{secrets.token_hex(8)}.part"
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # some file systems have no locks: what is left there stays
            fcntl.flock(file, fcntl.LOCK_EX)
        if part.exists():  # another process may have taken it for a leftover before it was locked
            return part, file
        os.close(file)


def _remove_leftovers(folder: Path) -> None:
    """Remove the parts of processes that were killed: nobody holds their locks."""
    for part in folder.glob(".dtdispatch-*.part"):
        with suppress(OSError):  # another user's, or in use
            file = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _PART.fullmatch(part.name) and stat.S_ISREG(os.fstat(file).st_mode):
                    part.unlink()
            finally:
                os.close(file)
