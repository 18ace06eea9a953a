"""Parse one value of a flag, ini file or marker; a ValueError names the valid values."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.plain_data import MAX_NUMBER
from pytest_dtdispatch.core.text import name_of_any_dim, nearest, shown
from pytest_dtdispatch.core.verdicts import THRESHOLD_FIELDS, THRESHOLD_STATES, Threshold

T = TypeVar("T")

AUTO = "auto"
DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
THRESHOLD = re.compile(
    rf"((?P<state>{'|'.join(THRESHOLD_STATES)})=)?((?P<field>{'|'.join(THRESHOLD_FIELDS)}):)?"
    rf"(?P<percent>{DECIMAL.pattern})%(?P<strict>,strict)?"
)
ON = ("1", "true", "yes", "on")  # in an ini file


def read_argument(keyword: str, value: Any, read: Callable[[Any], T], wrong: type[Exception]) -> T:
    """Parse a keyword argument; raise ``wrong`` if its value is invalid."""
    __tracebackhide__ = True
    try:
        return read(value)
    except ValueError as error:
        raise wrong(f"{keyword}={shown(value)} is not {error}") from None


def _parsed(parse: Callable[[Any], T | None], value: Any, valid: str, names: Sequence[str] = ()) -> T:
    """Return the parsed value; if it is None or parsing raises, raise a ValueError with the valid values.

    The error suggests one of the valid names for a misspelled one in the value.
    """
    try:
        parsed = parse(value)
    except Exception:  # a user's value can raise anything
        parsed = None
    if parsed is None:
        raise ValueError(f"{valid}{nearest(value, names) if names else ''}")
    return parsed


def read_decimal(text: str) -> float:
    """Parse a number in ASCII digits; unlike ``float``, reject ``3_0``.

    Raises:
        ValueError: the text is not such a number.

    Example:
        >>> read_decimal("7.5"), read_decimal(" 1e-3 ")
        (7.5, 0.001)
    """
    if not DECIMAL.fullmatch(text.strip()):
        raise ValueError("a number")
    return float(text)


def _whole(value: Any, least: int = 1, most: float = math.inf) -> int | None:
    """Convert a number or ASCII digits to a whole number; return None if invalid or out of range."""
    if isinstance(value, bool) or (isinstance(value, str) and not re.fullmatch("[+-]?[0-9]+", value.strip())):
        return None
    number = int(value) if isinstance(value, str) else operator.index(value)
    return number if least <= number <= most else None


def _positive(value: Any, most: float = sys.float_info.max) -> float | None:
    number = read_decimal(value) if isinstance(value, str) else float(value)
    return number if 0 < number <= most and not isinstance(value, bool) else None


def _listed(value: Any) -> tuple[str, ...] | None:
    """Return one or several nonempty strings as a tuple; None for anything else."""
    texts = (value,) if isinstance(value, str) else value
    is_listed = isinstance(texts, (tuple, list)) and all(isinstance(text, str) and text for text in texts)
    return tuple(texts) if is_listed else None


def read_count(value: Any, least: int = 1) -> int:
    """Parse a whole number of at least ``least``."""
    return _parsed(partial(_whole, least=least), value, f"a whole number of at least {least}")


def read_ranks(value: Any) -> int:
    """Parse the number of ranks to start on one machine, one process each."""
    return _parsed(partial(_whole, most=1024), value, "a whole number from 1 to 1,024")


def read_rounds(value: Any) -> int | str:
    """Parse a number of rounds, or ``auto``."""
    if isinstance(value, str) and value == AUTO:
        return AUTO
    return _parsed(_whole, value, f"a whole number of at least 1, or {AUTO}", [AUTO])


def read_seconds(value: Any) -> float:
    """Parse a positive number of seconds."""
    longest = 10**9  # about 30 years; clocks overflow soon after
    valid = f"a number of seconds above 0, and at most {longest:,}"
    return _parsed(partial(_positive, most=longest), value, valid)


def read_limit(value: Any) -> float:
    """Parse a limit: a number above 0, not a string."""
    return _parsed(_positive, None if isinstance(value, str) else value, "a number above 0")


def read_sizes(value: Any) -> tuple[int, ...]:
    """Parse sizes and return them sorted."""

    def sizes(value: Any) -> tuple[int, ...] | None:
        parsed = [None if isinstance(size, str) else read_count(size) for size in value]
        differing = {size for size in parsed if size is not None}
        return tuple(sorted(differing)) if len(differing) == len(parsed) > 1 else None

    return _parsed(sizes, value, "two or more whole numbers of at least 1 that differ")


def read_switch(value: Any) -> bool:
    """Parse a switch: a bool, or a word such as ``yes`` in an ini file."""
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    if text not in (*ON, "0", "false", "no", "off"):
        raise ValueError("true or false")
    return text in ON


def read_mesh(value: Any) -> tuple[int, ...]:
    """Parse a mesh shape: ``2x4``, ``4``, or in a marker a tuple of numbers."""

    def shape(value: Any) -> tuple[int, ...] | None:
        parts = value.split("x") if isinstance(value, str) else value
        return tuple(map(read_count, parts if isinstance(parts, (tuple, list)) else (parts,))) or None

    return _parsed(shape, value, "a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4")


def read_names(value: Any) -> tuple[str, ...]:
    """Parse names of mesh dimensions."""
    texts = None if isinstance(value, str) else _listed(value)
    if texts is None or len(set(texts)) < len(texts):
        raise ValueError('a tuple of names that differ, such as ("dp", "tp")')
    return texts


def read_globs(value: Any) -> tuple[str, ...]:
    """Parse globs of op names."""
    return _parsed(_listed, value, 'globs of op names, such as "add*"')


def read_packages(value: Any) -> tuple[str, ...]:
    """Parse dotted names of packages or modules."""
    texts = _listed(value)
    if not texts or not all(part.isidentifier() for text in texts for part in text.split(".")):
        raise ValueError("names of packages, such as spmd_types")
    return texts


def read_file(value: Any) -> Path:
    """Parse the path of a file."""

    def path(value: Any) -> Path | None:
        return Path(value) if value.strip() and "\0" not in value else None

    return _parsed(path, value, "the path of a file")


def read_files(value: Any) -> tuple[Path, ...]:
    """Parse one or several paths of files."""
    files = value if isinstance(value, (tuple, list)) else (value,)
    if not files:
        raise ValueError("the path of a file")
    return tuple(map(read_file, files))


class Export(NamedTuple):
    """A file and its export format."""

    format: str
    path: Path

    @property
    def is_auto(self) -> bool:
        """Whether an environment variable names the file."""
        return self == ("markdown", Path(AUTO))

    @property
    def is_stdout(self) -> bool:
        """Whether it is written to standard output."""
        return self.path == Path("-")

    @property
    def target(self) -> str:
        """File, for messages."""
        return "standard output" if self.is_stdout else str(self.path)

    def below(self, folder: Path) -> Export:
        """Return the export with a relative path resolved in a folder."""
        return self if self.is_auto or self.is_stdout else self._replace(path=folder / self.path)


def read_exports(value: Any, formats: Sequence[str]) -> tuple[Export, ...]:
    """Parse one or several ``FORMAT:FILE``.

    Example:
        >>> read_exports("csv:out/rows.csv", ("csv", "html"))
        (Export(format='csv', path=PosixPath('out/rows.csv')),)
    """

    def exports(value: Any) -> tuple[Export, ...] | None:
        parts = [text.strip().partition(":") for text in _listed(value) or ()]
        are_valid = parts and all(name in formats for name, _, _ in parts)
        return tuple(Export(name, read_file(path)) for name, _, path in parts) if are_valid else None

    return _parsed(exports, value, f"FORMAT:FILE, with a format of {', '.join(formats)}", formats)


def read_choice(value: Any, choices: Sequence[str]) -> str:
    """Parse one of several words."""
    return choices[_parsed(choices.index, value, f"one of {', '.join(choices)}", choices)]


def read_limits(value: Any, names: Sequence[str], example: str = "misses=0,collectives=4") -> dict[str, int]:
    """Parse limits by name: ``misses=0,collectives=4``, several such strings, or a dict.

    A name with ``[DIM]`` is valid for any mesh dimension, as in ``collectives[tp]=4``.

    Example:
        >>> read_limits("misses=0, recompiles=1", ("misses", "recompiles"))
        {'misses': 0, 'recompiles': 1}
    """

    def limits(value: Any) -> dict[str, int] | None:
        if isinstance(value, Mapping):
            pairs: list[Any] = list(value.items())
        else:
            pairs = [part.split("=") for text in _listed(value) or ("",) for part in text.split(",")]
        read: dict[str, int] = {}
        for name, text in pairs:
            number = _whole(text, least=0, most=MAX_NUMBER - 1)
            if number is None or name_of_any_dim(name.strip()) not in names:
                return None
            read[name.strip()] = number
        return read if len(read) == len(pairs) else None

    each_once = f"whole numbers from 0 to 2**63-1 by name, each once, of {', '.join(names)}"
    return _parsed(limits, value, f"a list of limits such as {example}: {each_once}", names)


def read_thresholds(value: Any) -> tuple[Threshold, ...]:
    """Parse one or several thresholds: ``10%``, ``hit=20%,strict``, or ``median:10%``."""

    def thresholds(value: Any) -> tuple[Threshold, ...] | None:
        read: list[Threshold] = []
        for text in _listed(value) or ():
            found = THRESHOLD.fullmatch(text)
            if found is None:
                return None
            state, field, percent, strict = found.group("state", "field", "percent", "strict")
            read.append(Threshold(state or "", field or "min", float(percent) / 100, bool(strict)))
        figures = {each.figure for each in read if 0 < each.fraction <= 100}
        return tuple(read) if len(figures) == len(read) > 0 else None

    valid = (
        "a list of thresholds such as 10% or hit=20%,strict: [STATE=][FIELD:]PERCENT, "
        "above 0% and at most 10000%, each for a different figure; "
        f"states: {', '.join(THRESHOLD_STATES)}; fields: {', '.join(THRESHOLD_FIELDS)}"
    )
    return _parsed(thresholds, value, valid, (*THRESHOLD_STATES, *THRESHOLD_FIELDS, "strict"))
