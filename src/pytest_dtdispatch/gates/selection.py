"""Selection of the tests of a baseline or an expected file: rows of unselected tests are not missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import first_of, grouped
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

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
        return key in self.tests or not self._is_skipped(key.partition("::")[0])

    def _is_skipped(self, name: str) -> bool:
        """Return whether a file exists, and was skipped."""
        files = (root / name for root in self.roots)
        return any(file.is_file() and not {file, *file.parents}.isdisjoint(self.skipped) for file in files)


def name_renamed(verdicts: Iterable[RowVerdict], new: Iterable[RowId]) -> list[RowVerdict]:
    """Name new rows with the label and state of a missing row, whose test may have another id now.

    Args:
        verdicts: verdicts of a gate.
        new: rows of the run that the baseline lacks.

    Returns:
        The verdicts. The details of a missing row name the tests of such rows, the most similar first.
    """
    by_label = grouped((_last(row), row) for row in new)

    def named(verdict: RowVerdict) -> RowVerdict:
        row, name = verdict.row, f"{verdict.row.test}::{verdict.row.label}"
        rows = by_label.get(_last(row), ()) if verdict.verdict is Verdict.MISSING else ()
        # Where the test of a row in an expected file is unknown, its label may be longer.
        tests = {each.test for each in rows if each.state == row.state and name.endswith(f"::{each.label}")}
        if not tests:
            return verdict
        starts = [row.test.partition(end)[0] for end in ("[", "::")]  # its function, its file
        closest = sorted(tests, key=lambda test: (*(not test.startswith(start) for start in starts), test))
        ids = ", ".join(first_of([shorten(row_key(test)) for test in closest], 2))
        hint = f"the same signature under another id: {ids}"
        return replace(verdict, details=(*filter(None, [verdict.criterion]), hint))

    return [named(verdict) for verdict in verdicts]


def _last(row: RowId) -> str:
    return row.label.rpartition("::")[2]
