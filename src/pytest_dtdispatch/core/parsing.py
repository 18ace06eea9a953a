"""Read one value as flags, ini files and markers write it; a ValueError names what is valid."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.core.verdicts import read_decimal, read_thresholds
from pytest_dtdispatch.errors import DtDispatchError

T = TypeVar("T")

AUTO = "auto"
MOST_RANKS = 1024
LONGEST_S = 10**9  # some 30 years; clocks overflow soon after
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")  # as an ini file writes a switch


def read_given(keyword: str, given: Any, read: Callable[[Any], T], wrong: type[DtDispatchError]) -> T:
    """Read what a test gave for a keyword; what is not valid is an error of this type."""
    __tracebackhide__ = True
    try:
        return read(given)
    except ValueError as error:
        raise wrong(f"{keyword}={shown(given)} is not {error}") from None


def read_count(value: Any, least: int = 1) -> int:
    """Read a whole number of at least 1, or 0."""
    try:
        is_plain = not isinstance(value, str) or re.fullmatch("[+-]?[0-9]+", value.strip())
        number = (int(value) if isinstance(value, str) else operator.index(value)) if is_plain else least - 1
    except Exception:  # the value is the user's, and can raise anything
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ValueError(f"a whole number of at least {least}")
    return number


def read_ranks(value: Any) -> int:
    """Read a number of ranks to start on one machine: each is a process."""
    try:
        number = read_count(value)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_RANKS:
        raise ValueError(f"a whole number from 1 to {MOST_RANKS:,}")
    return number


def read_rounds(value: Any) -> int | str:
    """Read a number of rounds, or ``auto`` for as many as are enough."""
    if isinstance(value, str) and value == AUTO:
        return AUTO
    try:
        return read_count(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {AUTO}") from None


def read_seconds(value: Any) -> float:
    """Read a positive number of seconds, of which a clock can wait."""
    valid = "a number of seconds above 0"
    seconds = _read_positive(value, valid)
    if seconds > LONGEST_S:
        raise ValueError(f"{valid}, and at most {LONGEST_S:,}")
    return seconds


def read_limit(value: Any) -> float:
    """Read a limit: a number above 0, and no text."""
    return _read_positive(0.0 if isinstance(value, str) else value, "a number above 0")


def _read_positive(value: Any, valid: str) -> float:
    try:
        number = read_decimal(value) if isinstance(value, str) else float(value)
    except Exception:  # the value is the user's, as above
        number = 0.0
    if not 0 < number < float("inf") or isinstance(value, bool):
        raise ValueError(valid)
    return number


def read_sizes(value: Any) -> tuple[int, ...]:
    """Read sizes, the smallest first."""
    try:
        sizes = tuple(read_count(size if isinstance(size, bool) else operator.index(size)) for size in value)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) < 2 or len(set(sizes)) < len(sizes):
        raise ValueError("two or more whole numbers of at least 1 that differ")
    return tuple(sorted(sizes))


def read_switch(value: Any) -> bool:
    """Read a switch: a bool, or as an ini file writes one."""
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    if text in ON or text in OFF:
        return text in ON
    raise ValueError("true or false")


def read_mesh(value: Any) -> tuple[int, ...]:
    """Read a mesh shape: ``2x4``, ``4``, or in a marker a tuple of numbers."""
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, (tuple, list)):
        parts = (parts,)
    try:
        shape = tuple(read_count(part) for part in parts)
    except ValueError:
        shape = ()
    if not shape:
        raise ValueError("a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4")
    return shape


def read_names(value: Any) -> tuple[str, ...]:
    """Read names of mesh dimensions."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError('a tuple of names, such as ("dp", "tp")')
    if len(set(value)) < len(value):
        raise ValueError("a tuple of names that differ")
    return tuple(value)


def read_word(value: Any) -> str:
    """Read a name."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name")
    return value.strip()


def read_globs(value: Any) -> tuple[str, ...]:
    """Read globs of op names."""
    globs = (value,) if isinstance(value, str) else value
    if not isinstance(globs, (tuple, list)) or not all(isinstance(glob, str) and glob for glob in globs):
        raise ValueError('globs of op names, such as "add*"')
    return tuple(globs)


def read_file(value: Any) -> Path:
    """Read the path of a file."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("the path of a file")
    return Path(value)


def read_files(value: Any) -> tuple[Path, ...]:
    """Read the path of a file, or several."""
    files = tuple(map(read_file, value if isinstance(value, (tuple, list)) else (value,)))
    if not files:
        raise ValueError("the path of a file")
    return files


class Export(NamedTuple):
    """A file that is written in a format."""

    format: str
    path: Path

    @property
    def is_auto(self) -> bool:
        """Whether the environment names the file."""
        return self == ("markdown", Path(AUTO))


def read_exports(value: Any, formats: Sequence[str]) -> tuple[Export, ...]:
    """Read ``FORMAT:FILE``, or several of these.

    Example:
        >>> read_exports("csv:out/rows.csv", ("csv", "html"))
        (Export(format='csv', path=PosixPath('out/rows.csv')),)
    """
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (tuple, list)) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"FORMAT:FILE, with a format of {', '.join(formats)}")
    return tuple(_read_export(text, formats) for text in texts)


def _read_export(text: str, formats: Sequence[str]) -> Export:
    name, colon, path = text.strip().partition(":")
    if not colon:
        raise ValueError(f"FORMAT:FILE, with a format of {', '.join(formats)}")
    if name not in formats:
        raise ValueError(f"FORMAT:FILE: no format is called {shown(name)}; valid: {', '.join(formats)}")
    try:
        return Export(name, read_file(path))
    except ValueError as error:
        raise ValueError(f"FORMAT:FILE: {shown(path)} is not {error}") from None


def read_choice(value: Any, choices: Sequence[str]) -> str:
    """Read one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return str(value)


def read_limits(value: Any, names: Sequence[str]) -> dict[str, int]:
    """Read limits by name: ``misses=0,collectives=4``, several such texts, or in Python a dict.

    Example:
        >>> read_limits("misses=0, recompiles=1", ("misses", "recompiles"))
        {'misses': 0, 'recompiles': 1}
    """
    limits: dict[str, int] = {}
    for name, number in _limits_of(value):
        if not isinstance(name, str) or name not in names:
            raise ValueError(f"{shown(name)} is no limit; valid: {', '.join(names)}")
        if name in limits:
            raise ValueError(f"{name} is given twice")
        try:
            limits[name] = read_count(number, least=0)
        except ValueError as error:
            raise ValueError(f"{name}={shown(number)} is not {error}") from None
    return limits


def _limits_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (tuple, list)) or not all(isinstance(text, str) for text in texts):
        raise ValueError('limits are a text, such as "misses=0,collectives=4", or a dict')
    pairs = (part.partition("=") for part in ",".join(texts).split(","))
    return [(name.strip(), number.strip()) for name, _, number in pairs]


# Those of words and of named values take what is valid too.
READERS: Mapping[str, Callable[..., Any]] = {
    "choice": read_choice,
    "exports": read_exports,
    "limits": read_limits,
    "count": read_count,
    "files": read_files,
    "globs": read_globs,
    "mesh": read_mesh,
    "names": read_names,
    "ranks": read_ranks,
    "rounds": read_rounds,
    "seconds": read_seconds,
    "switch": read_switch,
    "thresholds": read_thresholds,
    "word": read_word,
}
