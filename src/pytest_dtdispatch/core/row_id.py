"""Identity of a row: the test, the signature or result, and the state. Only writers convert it to text."""

from __future__ import annotations

from typing import NamedTuple


class RowId(NamedTuple):
    """Identity of a row, the same in every run.

    Args:
        test: name of the test; empty for a row of the whole run.
        label: signature, or name of a call, a step or another result; empty for a row of the whole test.
        state: state of samples, or a count of an A/B run; None for all states of the row.

    Example:
        >>> print(RowId("t.py::test_add", "block::add", "hit"))
        t.py::test_add::block::add::hit
    """

    test: str
    label: str = ""
    state: str | None = None

    def __str__(self) -> str:
        return "::".join(part for part in self if part)

    def contains(self, row: RowId) -> bool:
        """Return whether a row is this one, one of its states, or a row of this test, file or class."""
        if self.label:
            return (row.test, row.label) == (self.test, self.label) and self.state in (None, row.state)
        return row.test == self.test or row.test.startswith(f"{self.test}::")
