"""Read one value as flags, ini files and markers write it; a ValueError names what is valid."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.core.verdicts import STRICT, THRESHOLD_FIELDS, THRESHOLD_STATES, Threshold
from pytest_dtdispatch.errors import DtDispatchError

T = TypeVar("T")

AUTO = "auto"
MOST_RANKS = 1024
LONGEST_S = 10**9  # some 30 years; clocks overflow soon after
WHOLE = re.compile("[+-]?[0-9]+")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")  # as an ini file writes a switch


def read_argument(keyword: str, value: Any, read: Callable[[Any], T], wrong: type[DtDispatchError]) -> T:
    """Read what a test gave for a keyword; what is not valid is an error of this type."""
    __tracebackhide__ = True
    try:
        return read(value)
    except ValueError as error:
        raise wrong(f"{keyword}={shown(value)} is not {error}") from None


def _made(valid: str, make: Callable[[], T | None]) -> T:
    """Return what is made of a value; where that is None, or raises, say what is valid."""
    try:
        made = make()
    except Exception:  # the value is the user's, and can raise anything
        made = None
    if made is None:
        raise ValueError(valid)
    return made


def read_decimal(text: str) -> float:
    """Read a number as this package writes it, in ASCII digits: Python's own reader takes ``3_0`` for 30.

    Raises:
        ValueError: the text is no such number.

    Example:
        >>> read_decimal("7.5"), read_decimal(" 1e-3 ")
        (7.5, 0.001)
    """
    if not DECIMAL.fullmatch(text.strip()):
        raise ValueError("a number")
    return float(text)


def _whole(value: Any, least: int = 1) -> int | None:
    """Return a whole number of at least so many, as a number or in ASCII digits; None of all else."""
    if isinstance(value, bool) or (isinstance(value, str) and not WHOLE.fullmatch(value.strip())):
        return None
    number = int(value) if isinstance(value, str) else operator.index(value)
    return number if number >= least else None


def _positive(value: Any) -> float | None:
    number = read_decimal(value) if isinstance(value, str) else float(value)
    return number if 0 < number < math.inf and not isinstance(value, bool) else None


def _listed(value: Any) -> tuple[str, ...] | None:
    """Return one text, or several; None of all else."""
    texts = (value,) if isinstance(value, str) else value
    is_listed = isinstance(texts, (tuple, list)) and all(isinstance(text, str) for text in texts)
    return tuple(texts) if is_listed else None


def _names(value: Any) -> tuple[str, ...] | None:
    """Return texts of which none is empty; None of all else."""
    texts = _listed(value)
    return texts if texts is not None and all(texts) else None


def read_count(value: Any, least: int = 1) -> int:
    """Read a whole number of at least 1, or 0."""
    return _made(f"a whole number of at least {least}", lambda: _whole(value, least))


def read_ranks(value: Any) -> int:
    """Read a number of ranks to start on one machine: each is a process."""
    valid = f"a whole number from 1 to {MOST_RANKS:,}"
    return _made(valid, lambda: ranks if (ranks := _whole(value)) and ranks <= MOST_RANKS else None)


def read_rounds(value: Any) -> int | str:
    """Read a number of rounds, or ``auto`` for as many as are enough."""
    if isinstance(value, str) and value == AUTO:
        return AUTO
    return _made(f"a whole number of at least 1, or {AUTO}", lambda: _whole(value))


def read_seconds(value: Any) -> float:
    """Read a positive number of seconds, of which a clock can wait."""
    valid = "a number of seconds above 0"
    seconds = _made(valid, lambda: _positive(value))
    if seconds > LONGEST_S:
        raise ValueError(f"{valid}, and at most {LONGEST_S:,}")
    return seconds


def read_limit(value: Any) -> float:
    """Read a limit: a number above 0, and no text."""
    return _made("a number above 0", lambda: None if isinstance(value, str) else _positive(value))


def read_sizes(value: Any) -> tuple[int, ...]:
    """Read sizes, the smallest first."""

    def sizes() -> tuple[int, ...] | None:
        each = [None if isinstance(size, str) else _whole(size) for size in value]
        differing = {size for size in each if size is not None}
        return tuple(sorted(differing)) if len(differing) == len(each) > 1 else None

    return _made("two or more whole numbers of at least 1 that differ", sizes)


def read_switch(value: Any) -> bool:
    """Read a switch: a bool, or as an ini file writes one."""
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    return _made("true or false", lambda: text in ON if text in ON + OFF else None)


def read_mesh(value: Any) -> tuple[int, ...]:
    """Read a mesh shape: ``2x4``, ``4``, or in a marker a tuple of numbers."""

    def shape() -> tuple[int, ...] | None:
        parts = value.split("x") if isinstance(value, str) else value
        extents = [_whole(part) for part in (parts if isinstance(parts, (tuple, list)) else (parts,))]
        return tuple(extent for extent in extents if extent) if extents and all(extents) else None

    return _made("a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4", shape)


def read_names(value: Any) -> tuple[str, ...]:
    """Read names of mesh dimensions."""
    names = _made(
        'a tuple of names, such as ("dp", "tp")', lambda: None if isinstance(value, str) else _names(value)
    )
    if len(set(names)) < len(names):
        raise ValueError("a tuple of names that differ")
    return names


def read_globs(value: Any) -> tuple[str, ...]:
    """Read globs of op names."""
    return _made('globs of op names, such as "add*"', lambda: _names(value))


def read_file(value: Any) -> Path:
    """Read the path of a file."""
    return _made("the path of a file", lambda: Path(value) if value.strip() and "\0" not in value else None)


def read_files(value: Any) -> tuple[Path, ...]:
    """Read the path of a file, or several."""
    files = tuple(map(read_file, value if isinstance(value, (tuple, list)) else (value,)))
    return _made("the path of a file", lambda: files or None)


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
    valid = f"FORMAT:FILE, with a format of {', '.join(formats)}"
    texts = _made(valid, lambda: _listed(value) or None)
    return tuple(_read_export(text, formats, valid) for text in texts)


def _read_export(text: str, formats: Sequence[str], valid: str) -> Export:
    name, colon, path = text.strip().partition(":")
    if not colon:
        raise ValueError(valid)
    if name not in formats:
        raise ValueError(f"FORMAT:FILE: no format is called {shown(name)}; valid: {', '.join(formats)}")
    try:
        return Export(name, read_file(path))
    except ValueError as error:
        raise ValueError(f"FORMAT:FILE: {shown(path)} is not {error}") from None


def read_choice(value: Any, choices: Sequence[str]) -> str:
    """Read one of several words."""
    is_one = isinstance(value, str) and value in choices
    return _made(f"one of {', '.join(choices)}", lambda: str(value) if is_one else None)


def read_limits(value: Any, names: Sequence[str]) -> dict[str, int]:
    """Read limits by name: ``misses=0,collectives=4``, several such texts, or in Python a dict.

    Example:
        >>> read_limits("misses=0, recompiles=1", ("misses", "recompiles"))
        {'misses': 0, 'recompiles': 1}
    """
    if isinstance(value, Mapping):
        pairs: list[tuple[Any, Any]] = list(value.items())
    else:
        valid = 'limits are a text, such as "misses=0,collectives=4", or a dict'
        parts = ",".join(_made(valid, lambda: _listed(value))).split(",")
        pairs = [
            (name.strip(), number.strip()) for name, _, number in (part.partition("=") for part in parts)
        ]
    limits: dict[str, int] = {}
    for name, number in pairs:
        if not isinstance(name, str) or name not in names:
            raise ValueError(f"{shown(name)} is no limit; valid: {', '.join(names)}")
        if name in limits:
            raise ValueError(f"{name} is given twice")
        try:
            limits[name] = read_count(number, least=0)
        except ValueError as error:
            raise ValueError(f"{name}={shown(number)} is not {error}") from None
    return limits


def read_thresholds(value: Any) -> tuple[Threshold, ...]:
    """Read thresholds: ``median:10%``, ``hit=median:7.5%,strict``, or ``10%`` of the median; one or more."""
    texts = _made('thresholds, such as "10%" or "hit=median:7.5%"', lambda: _listed(value) or None)
    thresholds = tuple(map(_read_threshold, texts))
    [(figure, times)] = Counter(threshold.figure for threshold in thresholds).most_common(1)
    if times > 1:
        raise ValueError(f"thresholds that differ in state or field: {figure} is given twice")
    return thresholds


def _read_threshold(text: str) -> Threshold:
    is_strict = text.endswith(STRICT)
    text = text.removesuffix(STRICT)
    head, has_field, percent = text.rpartition(":")
    if not has_field:
        head, _, percent = text.rpartition("=") if "=" in text else ("", "", text)
        head += "=median" if head else "median"
    state, has_state, field = head.rpartition("=")
    example = "[STATE=]FIELD:PERCENT, such as median:10% or hit=median:7.5%"
    if has_state and state not in THRESHOLD_STATES:
        raise ValueError(f"{example}: the state is one of {', '.join(THRESHOLD_STATES)}, not {state!r}")
    if field not in THRESHOLD_FIELDS:
        raise ValueError(f"{example}: the field is one of {', '.join(THRESHOLD_FIELDS)}, not {field!r}")
    try:
        fraction = read_decimal(percent.removesuffix("%")) / 100
    except ValueError:
        fraction = 0.0
    is_number = 0 < fraction <= 100
    if is_number and not percent.endswith("%"):
        raise ValueError(f"{example}: write {percent.strip()}%")
    if not is_number:
        raise ValueError(f"{example}: the percentage is above 0% and at most 10000%, not {percent!r}")
    return Threshold(state, field, fraction, is_strict)
