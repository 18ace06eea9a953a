"""Read a file of a bounded size; write a file whole, or leave the one that is there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pytest_dtdispatch.errors import DtDispatchError


def read_text(path: Path, most_bytes: int, too_large: str) -> str:
    """Read a file from anywhere; a ValueError with these words refuses a larger one."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(too_large)
    return data.decode("utf-8-sig")  # some editors begin a file with a mark


def checked_target(path: Path) -> None:
    """Check that a file can be written, before hours of work are lost on one that cannot."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # its name is too long
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None
    if is_folder:
        raise DtDispatchError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise DtDispatchError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK)):
        raise DtDispatchError(f"{path} is read-only")  # root too would overwrite it unasked
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DtDispatchError(f"{path}: its folder cannot be written to: {error.strerror}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place, and move it there: what was there is lost only when all is written."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # a path may be no UTF-8
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None
