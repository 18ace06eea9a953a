"""Texts of values, times and user-provided names, groups of values, and progress messages."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar

MAX_SHOWN = 120
MAX_LISTED = 10
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
COUNT_UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
# The index of a layer in a text with a module name: layers.0.wq, FSDP::pre_forward (layers.0).
INDEX = re.compile(r"(?<![^.(])\d+(?![^.,)])")


class TextEnum(str, Enum):
    """Enum whose members are formatted as their values, like ``enum.StrEnum`` of Python 3.11 and later."""

    __str__ = str.__str__


Answer = TypeVar("Answer")
Key = TypeVar("Key")
Value = TypeVar("Value")


def ask(question: Callable[[Any], Answer], value: object, unknown: Answer) -> Answer:
    """Return ``question(value)`` for a value of the program, or ``unknown`` if that raises.

    Example:
        >>> ask(len, "two", 0), ask(len, 2, 0)
        (3, 0)
    """
    try:
        return question(value)
    except Exception:  # raised by user code, or by torch for a tensor that it cannot describe
        return unknown


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Group the values of pairs by their keys, in the order of first occurrence.

    Example:
        >>> grouped([("add", 1), ("mm", 2), ("add", 3)])
        {'add': [1, 3], 'mm': [2]}
    """
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def plural(number: int, noun: str, ending: str = "s") -> str:
    """Format a count with its noun.

    Example:
        >>> plural(1, "op"), plural(1200, "miss", "es")
        ('1 op', '1,200 misses')
    """
    return f"{number:,} {noun}{ending * (number != 1)}"


def escape_controls(text: str) -> str:
    r"""Escape unprintable characters, such as ESC or a right-to-left mark.

    Example:
        >>> print(escape_controls("\x1b[31mred\r"))
        \x1b[31mred\r
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def shown(value: object) -> str:
    """Return the repr of an invalid value as one short line, or its type if its repr raises.

    Example:
        >>> shown([1, "two"]), len(shown("9" * 5000))
        ("[1, 'two']", 120)
    """
    try:
        text = repr(value)
    except Exception:  # a user's repr can raise anything
        return f"<{type(value).__name__} that cannot be shown>"
    text = escape_controls(" ".join(text.split()))
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def brief(error: object) -> str:
    """Return the message of an error; omit the middle of one above 400 characters.

    Example:
        >>> len(brief("x" * 10_000)), brief("not a text")
        (400, 'not a text')
    """
    text = str(error)
    return text if len(text) <= 400 else f"{text[:197]}...{text[-200:]}"


def listed(items: Sequence[object]) -> list[str]:
    """Return an indented line for each of the first items, and a line with the number of the others."""
    return [f"    {item}" for item in first_of(items, MAX_LISTED)]


def joined_lines(lines: Iterable[str], most: int = MAX_LISTED) -> str:
    """Format the first source lines of each file.

    Example:
        >>> joined_lines(["model.py:6", "train.py:9", "model.py:7"])
        'model.py:6, 7, train.py:9'
    """
    parts = (shorten_path(line).rpartition(":") for line in lines)
    numbers = grouped((file, number) for file, _, number in parts)
    return ", ".join(f"{file}:{', '.join(first_of(each, most))}" for file, each in numbers.items())


def nearest(typed: object, valid: Iterable[str]) -> str:
    """Return a suggestion for the first misspelled name in a value, or an empty string.

    A prefix that all names share, such as that of flags, does not make them similar.

    Args:
        typed: a name, a text with names, or several.
        valid: valid names.

    Example:
        >>> nearest("--budjet", ("--budget", "--help")), nearest("--x", ["--budget"])
        ('; did you mean --budget?', '')
        >>> nearest("misses=0,colectives=1", ("misses", "collectives"))
        '; did you mean collectives?'
    """
    from difflib import get_close_matches

    names = [*valid]
    texts = (typed,) if isinstance(typed, str) else typed if isinstance(typed, (tuple, list, dict)) else ()
    text = " ".join(text for text in texts if isinstance(text, str))
    words = [word for word in re.findall(r"[-\w]*[a-zA-Z][-\w]*", text[:1000]) if word not in names]
    for word in words:
        start = len(os.path.commonprefix([word, *names]))  # noqa: RUF071 (of characters, not of folders)
        ends = {name[start:]: name for name in names if "[" not in name}
        typings = dict.fromkeys((word[start:], word[start:].lower()))
        found = (get_close_matches(text, ends, n=2, cutoff=0.65) for text in typings)
        similar = next(filter(None, found), ())
        if similar:
            return f"; did you mean {' or '.join(ends[end] for end in similar)}?"
    return ""


def name_of_any_dim(name: str) -> str:
    """Return the name of a count with a placeholder for its mesh dimension, if it has one.

    Example:
        >>> name_of_any_dim("collective_bytes[tp]"), name_of_any_dim("misses")
        ('collective_bytes[DIM]', 'misses')
    """
    count, bracket, dim = name.partition("[")
    return f"{count}[DIM]" if bracket and dim.endswith("]") and len(dim) > 1 else name


def first_of(items: Sequence[object], most: int, how_all: str = "") -> list[str]:
    """Return the first items as texts, and a text with the number of the others.

    Example:
        >>> first_of("abcd", 2, "; -v lists them")
        ['a', 'b', 'and 2 more; -v lists them']
    """
    shown = [str(item) for item in items[:most]]
    if len(items) > most:
        shown.append(f"and {len(items) - most:,} more{how_all}")
    return shown


def fold_layers(names: Iterable[str]) -> dict[str, str]:
    """Map names that differ only in layer indices to one name, with a star for each differing index.

    Example:
        >>> fold_layers(["layers.0.wq", "layers.1.wq", "layers.1.norm"])
        {'layers.0.wq': 'layers.*.wq', 'layers.1.wq': 'layers.*.wq', 'layers.1.norm': 'layers.1.norm'}
    """
    folded: dict[str, str] = {}
    for family in grouped((INDEX.sub("*", name), name) for name in names).values():
        by_position = zip(*map(INDEX.findall, family), strict=True)
        indices = ["*" if len({*found}) > 1 else found[0] for found in by_position]
        parts = INDEX.split(family[0])
        shared = "".join(part for pair in zip(parts, [*indices, ""], strict=True) for part in pair)
        folded |= dict.fromkeys(family, shared)
    return folded


def shorten_path(name: str) -> str:
    """Omit all folders but the last from an absolute path or one of more than 30 characters.

    Example:
        >>> shorten_path("/opt/lib/torch/optim/adam.py:7"), shorten_path("train.py:7")
        ('.../optim/adam.py:7', 'train.py:7')
        >>> shorten_path("examples/train.py:7"), shorten_path("src/package/models/decoder/attention.py:7")
        ('examples/train.py:7', '.../decoder/attention.py:7')
    """
    *folders, folder, file = ("", *name.split("/"))
    is_cut = name.startswith("/") or len(name) > 30  # in a table of 80 columns
    return f".../{folder}/{file}" if is_cut and len(folders) > 1 else name


def own_name(fn: Callable[..., Any]) -> str:
    """Return the name of a callable, or ``<unnamed>``."""
    return str(ask(attrgetter("__name__"), fn, "<unnamed>"))


def step_name(step_fn: Callable[[], object]) -> str:
    """Return the name of a step function; ``step`` for a lambda or an unnamed callable."""
    name = own_name(step_fn)
    return "step" if name.startswith("<") else name


@dataclass(frozen=True)
class Scale:
    """A unit of time.

    Args:
        name: ``ns``, ``us``, ``ms`` or ``s``; empty for counts.
        ns: its length in nanoseconds.
        decimals: digits after the decimal point in a column of this unit.
    """

    name: str
    ns: float
    decimals: int

    def text(self, ns: float | None) -> str:
        """Format a time in nanoseconds; None is a dash."""
        return "-" if ns is None else f"{ns / self.ns:,.{self.decimals}f}"


# A fixed unit and number of digits make two runs comparable by eye.
MILLISECONDS, MICROSECONDS, COUNT = Scale("ms", 1e6, 3), Scale("us", 1e3, 2), Scale("", 1, 0)


def column_scale(values_ns: Iterable[float | None]) -> Scale:
    """Choose the unit of a column: its median is 1 to 999 in it, and its smallest value has three digits."""
    # No clock has a resolution of 1 ps: a smaller time is a rounding error.
    sizes = sorted(size for size in (abs(value or 0) for value in values_ns) if size >= 1e-3)
    if not sizes:
        return Scale("us", 1e3, 1)
    typical = sizes[len(sizes) // 2]
    name, ns = next(((name, ns) for name, ns in UNITS if typical >= ns), UNITS[-1])
    leading = math.floor(math.log10(sizes[0] / ns))
    return Scale(name, ns, min(max(2 - leading, 0), 3))


def short(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Format a time in nanoseconds, or a count, with three significant digits and a unit prefix.

    Example:
        >>> short(1000, UNITS), short(2.5e8, UNITS), short(0.5, UNITS)
        ('1 us', '250 ms', '0.5 ns')
        >>> short(1000, COUNT_UNITS), short(2.5e6, COUNT_UNITS), short(12, COUNT_UNITS)
        ('1 k', '2.5 M', '12')
    """
    name, size = next(((name, size) for name, size in units if value >= size), units[-1])
    return f"{value / size:.3g} {name}".rstrip()


Listener = Callable[[str], object]
_listeners: list[Listener] = []


@contextmanager
def progress_to(listener: Listener) -> Iterator[None]:
    """Temporarily pass progress messages to a listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def show_progress(form: str, *values: object) -> None:
    """Report progress; an empty message clears the line. It is formatted only if there is a listener.

    Example:
        >>> with progress_to(print):
        ...     show_progress("round {} of {}", 1, 20)
        round 1 of 20
    """
    for listener in _listeners:
        listener(form.format(*values))
