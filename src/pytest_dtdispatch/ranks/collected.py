"""Whether ranks collected the same tests."""

from __future__ import annotations

from collections.abc import Sequence


def difference(first: Sequence[str], other: Sequence[str]) -> str:
    """Name the first difference between the tests of two ranks; empty where there is none.

    Example:
        >>> difference(["t.py::a", "t.py::b"], ["t.py::a"])
        'lacks t.py::b'
        >>> difference(["t.py::a", "t.py::b"], ["t.py::b", "t.py::a"])
        'has t.py::b in place 1, where rank 0 has t.py::a'
    """
    have, expected = set(other), set(first)
    lacking = [name for name in first if name not in have]
    besides = [name for name in other if name not in expected]
    if lacking or besides:
        parts = (("lacks", lacking), ("has besides", besides))
        return " and ".join(f"{verb} {_named(names)}" for verb, names in parts if names)
    for place, (ours, theirs) in enumerate(zip(first, other, strict=False), start=1):
        if ours != theirs:
            return f"has {theirs} in place {place}, where rank 0 has {ours}"
    return "" if len(first) == len(other) else f"has {len(other)} tests, and rank 0 {len(first)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
