"""Identity of a row: the test, the signature or result, and the state. Only writers make text of it."""

from __future__ import annotations

from typing import NamedTuple


class RowId(NamedTuple):
    """Identity of a row, equal from run to run.

    Args:
        test: name of the test; empty if the row concerns the whole run.
        label: signature, or name of a call, a step or another result; empty if the row is the test.
        state: state of samples, or a count of an A/B run; None if the row has all its states.

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
        """Return whether a row is this one, a state of it, or a row of this test, file or class."""
        if self.label:
            return (row.test, row.label) == (self.test, self.label) and self.state in (None, row.state)
        return row.test == self.test or row.test.startswith(f"{self.test}::")
