"""Read files of limited size, and write files atomically.

An existing file is overwritten only if it has the same format, detected from its first bytes. Pipes and
devices are written to directly.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_dtdispatch.errors import DtDispatchError

MAX_BYTES = 256 * 2**20  # a thousand signatures with their samples are 25 MB
MAX_PARSED_BYTES = 2 * MAX_BYTES


def read_text(path: Path) -> str:
    """Read an untrusted file.

    Raises:
        ValueError: the file cannot be read, is too large or is not UTF-8; one line with the file's name.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: this is not UTF-8 text") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file; reject it before parsing if its values would need too much memory.

    Raises:
        ValueError: as in :func:`read_text`, or the text is not valid JSON.
    """
    text = read_text(path)
    # Estimated bytes of a list, a mapping and each further value, parsed and copied.
    if 64 * text.count("[") + 200 * text.count("{") + 80 * text.count(",") > MAX_PARSED_BYTES:
        raise ValueError(f"{path} would take more than {MAX_PARSED_BYTES // 2**20} MiB of memory")
    try:
        return json.loads(text, object_pairs_hook=_members)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise if a name occurs twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:40]!r} occurs twice in one object")
    return members


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; a process that dies releases the lock.

    Windows has no such locks: two sessions there may choose one name.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def checked_target(path: Path, begins: str = "") -> None:
    """Check that a file can be written, before a long run whose results would be lost.

    Args:
        path: of the file.
        begins: regular expression for the first bytes of its format: an existing file that does not match is
            rejected. Empty if the file is read before it is written.

    Raises:
        DtDispatchError: the file has another format, or cannot be written.
    """
    try:
        status = _status(path)
        if path.suffix == ".py":
            raise DtDispatchError(f"{path} is a name of Python code: name another file")
        if status is None or stat.S_ISREG(status.st_mode):
            folder = Path(os.path.realpath(path)).parent
            if not folder.is_dir():
                raise DtDispatchError(f"{path}: there is no folder {folder}")
            try:
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                why = f"its folder cannot be written to: {error.strerror}"
                raise DtDispatchError(f"{path}: {why}") from None
        if status is None:
            return
        if not (status.st_mode & 0o222 and os.access(path, os.W_OK)):
            raise DtDispatchError(f"{path} is read-only")  # root could overwrite it without a warning
        if begins and stat.S_ISREG(status.st_mode) and status.st_size:
            with path.open(encoding="utf-8-sig", errors="replace") as file:
                if not re.match(begins, file.read(2**16)):
                    raise DtDispatchError(f"{path} has another format: name another file, or remove it")
    except OSError as error:
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None


def write_atomic(path: Path, text: str) -> None:
    """Write a temporary file beside the path and rename it: an existing file is never left incomplete."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        status = _status(path)
        if status is None or stat.S_ISREG(status.st_mode):
            _replace(Path(os.path.realpath(path)), status, data)
        else:
            _stream(path, data)
    except OSError as error:
        no_reader = error.errno == errno.ENXIO and path.is_fifo()
        why = "nobody reads this pipe" if no_reader else error.strerror
        raise DtDispatchError(f"{path} cannot be written: {why}") from None


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a path, or None if nothing is there; reject folders, sockets and block devices."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    refused = {stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device"}
    kind = refused.get(stat.S_IFMT(status.st_mode))
    if kind:
        raise DtDispatchError(f"{path} is a {kind}: name a file")
    for printed in (1, 2) if stat.S_ISREG(status.st_mode) else ():
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(printed)):  # later output would be lost
                raise DtDispatchError(f"{path} is the file that this command prints to: name another file")
    return status


def _replace(path: Path, status: os.stat_result | None, data: bytes) -> None:
    """Rename a new file to the path, with the mode of the old one, and its owner if permitted."""
    part = path.with_name(f".dtdispatch-{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
            if status is not None:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _stream(path: Path, data: bytes) -> None:
    """Write to a pipe, a terminal or /dev/null; a pipe without a reader is an error, not a wait."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), "wb") as stream:
        os.set_blocking(stream.fileno(), True)
        stream.write(data)
