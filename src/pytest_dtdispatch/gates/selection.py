"""Selection of the tests of a baseline or an expected file: rows of unselected tests are not missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pytest_dtdispatch.core.results import row_key

EVERYTHING = ("",)


@dataclass(frozen=True)
class Selection:
    """Tests that a run selects, by its arguments, flags and plugins.

    A test without a trace in the run was deleted or renamed, unless its file exists and was skipped.

    Args:
        beginnings: prefixes of the names of selected tests, including a separator: ``t.py::``.
        deselected: names of tests that were collected, but that a flag or a plugin removed from the run.
        tests: names of all collected tests, as in files, including deselected ones.
        skipped: files that were not read, and folders that were not searched, because of a flag or a plugin.
        roots: folders that names of tests are relative to.

    Example:
        >>> selection = Selection(("t.py::",), {"t.py::test_b"})
        >>> [selection.has(test) for test in ("t.py::test_a", "t.py::test_b", "u.py::test_a")]
        [True, False, False]
    """

    beginnings: tuple[str, ...] = EVERYTHING
    deselected: Collection[str] = frozenset()
    tests: Collection[str] = frozenset()
    skipped: Collection[Path] = frozenset()
    roots: Collection[Path] = ()

    def has(self, test: str) -> bool:
        """Return whether a run selects a test, by its name or its name in files."""
        key = row_key(test)
        if key in self.deselected or not f"{key}::".startswith(self.beginnings):
            return False
        if key in self.tests:
            return True
        files = (root / key.partition("::")[0] for root in self.roots)
        within = [{file, *file.parents} for file in files if file.is_file()]
        return all(each.isdisjoint(self.skipped) for each in within)
