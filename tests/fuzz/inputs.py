"""Inputs to try: texts, values and JSON similar to valid ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as some

IS_WHOLE = settings.get_current_profile_name() == "fuzz"  # in `make fuzz`; otherwise a sample
# No deadline: a busy machine must not fail a test. Samples are the same in each run.
fuzzed = settings(
    max_examples=settings().max_examples if IS_WHOLE else 20,
    deadline=None,
    derandomize=not IS_WHOLE,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# A command line takes milliseconds, a run of pytest tenths of a second.
of_commands = settings(fuzzed, max_examples=max(10, fuzzed.max_examples // 2))
of_runs = settings(fuzzed, max_examples=max(15, fuzzed.max_examples // 4))

ODD_TEXTS = [
    "", " ", "-", "--", "0", "-1", "1", "5", "20", "20%", "1e300", "1e-320", "nan", "-inf", "inf", "9" * 5000,
    "\ufeff1", "\x1b[31m", "\r", "a\nb", "\u202e", "\udcff", "\0", "#", '"', '""', "'", ",", ",,,,",
    "x" * 5000,
    "/", ".", "/dev/null", "a" * 256, "a/b", "~", "median:", "hit=", "=", ":", "%", "2x", "x4", "2x4", "auto",
    "٣", "1_0", "0x10", "+1", "1.0", "2.7", "true", "None", "*", "[", "[!", "\\", "é", "💥",
]  # fmt: skip
letters = some.characters(codec=None)
odd_texts = some.one_of(some.sampled_from(ODD_TEXTS), some.text(letters, max_size=20))


class Broken:
    """A value of a marker whose methods all raise."""

    def _refuse(self, *args: object) -> Any:
        raise RuntimeError("broken")

    __repr__ = __str__ = __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__ = __hash__ = _refuse
    __eq__ = _refuse


odd_numbers = some.one_of(
    some.integers(), some.floats(), some.sampled_from([0, -1, 1, 2**53 + 1, 2**63, 10**400, 1e308, 5e-324])
)
odd_leaves = some.one_of(some.none(), some.booleans(), odd_numbers, odd_texts)
odd_json = some.recursive(
    odd_leaves,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(odd_texts, inner, max_size=3),
    max_leaves=5,
)
odd_values = some.one_of(
    odd_json,
    some.builds(Broken),
    some.tuples(odd_leaves, odd_leaves),
    some.binary(max_size=5),
    some.complex_numbers(),
    some.decimals(),
    some.fractions(),
    some.sets(some.integers(), max_size=3),
    some.just(object),
)


def json_paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value and container in JSON."""
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from json_paths(content[key], (*path, key))


@some.composite
def changed(draw: some.DrawFn, content: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Change JSON at one to three paths; return it with the paths."""
    content, where = copy.deepcopy(content), []
    for _ in range(draw(some.integers(1, 3))):
        path = draw(some.sampled_from(list(json_paths(content))))
        where.append(path)
        if not path:
            content = draw(odd_json)
            continue
        part, last = reduce(getitem, path[:-1], content), path[-1]
        change = draw(some.sampled_from(["number", "value", "name", "nothing"]))
        if change == "number" and isinstance(part[last], (int, float)):
            part[last] = draw(odd_numbers)
        elif change in ("number", "value") or not isinstance(part, dict):
            part[last] = draw(odd_json)
        else:
            value = part.pop(last)
            if change == "name":
                part[draw(odd_texts)] = value
    return content, where


@some.composite
def spoiled(draw: some.DrawFn, text: str) -> str:
    """Cut or double a text, or insert letters."""
    for _ in range(draw(some.integers(0, 3))):
        start = draw(some.integers(0, len(text)))
        end = start + draw(some.integers(0, 30))
        text = text[:start] + draw(some.one_of(odd_texts, some.just(text[start:end] * 2))) + text[end:]
    return text


def assert_one_line(error: BaseException | str, begin: str = "") -> None:
    """Check that an error is one line, which starts with its location."""
    text = str(error)
    assert text.strip()
    assert text.startswith(begin)
    assert "\n" not in text
    assert "Traceback" not in text
