"""Selection of the tests of a baseline or an expected file: rows of unselected tests are not missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pytest_dtdispatch.core.results import row_key

EVERYTHING = ("",)


@dataclass(frozen=True)
class Selection:
    """Tests that the arguments of a run select.

    Args:
        beginnings: prefixes of the names of selected tests, including a separator: ``t.py::``.
        deselected: names of tests that ``-k``, ``-m``, ``--deselect`` or a plugin deselected.
        tests: names of all collected tests, as in files, including deselected ones.

    Example:
        >>> selection = Selection(("t.py::",), {"t.py::test_b"})
        >>> [selection.has(test) for test in ("t.py::test_a", "t.py::test_b", "u.py::test_a")]
        [True, False, False]
    """

    beginnings: tuple[str, ...] = EVERYTHING
    deselected: Collection[str] = frozenset()
    tests: Collection[str] = frozenset()

    def has(self, test: str) -> bool:
        """Return whether a run selects a test, by its name or its name in files."""
        key = row_key(test)
        return f"{key}::".startswith(self.beginnings) and key not in self.deselected
