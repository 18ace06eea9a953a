"""Saved files of JSON, which may come from anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pytest_dtdispatch.core.files import read_text
from pytest_dtdispatch.core.text import brief

MOST_BYTES = 64 * 2**20  # a thousand signatures with their samples are 25 MB
MOST_HELD_BYTES = 8 * MOST_BYTES
# What a list, a mapping, and a value behind another one take, read and copied.
HELD_BYTES = {"[": 64, "{": 200, ",": 80}

T = TypeVar("T")


def read_saved(path: Path, read: Callable[[Any], T], what: str = "saved run") -> T:
    """Read a saved run by what reads its members.

    Args:
        path: of the file.
        read: makes a value of the members; a ValueError says what is wrong with them.
        what: what the file should be.

    Raises:
        ValueError: in one line, which file it is and what is wrong with it.
    """
    try:
        too_large = f"it has more than {MOST_BYTES // 2**20} MiB"
        return read(members_of(read_text(path, MOST_BYTES, too_large)))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no {what}: it is no text") from None
    except ValueError as error:
        raise ValueError(f"{path} is no {what}: {brief(error)}") from None


def members_of(text: str) -> Any:
    """Read JSON from anywhere, unless its values would take far more memory than its text."""
    if sum(text.count(sign) * size for sign, size in HELD_BYTES.items()) > MOST_HELD_BYTES:
        raise ValueError(f"its values would take more than {MOST_HELD_BYTES // 2**20} MiB of memory")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
