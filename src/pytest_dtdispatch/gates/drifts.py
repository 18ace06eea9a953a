"""How far rows that passed have moved since their baseline was set: what a gate lets by adds up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from pytest_dtdispatch.core.verdicts import Drift, RowVerdict, Verdict

LEAST_PERCENT = 0.05


@dataclass(frozen=True)
class RowDrift:
    """A row that passed, and how far it has moved.

    Args:
        row: what the gate said of it.
        drift: of the row.
    """

    row: RowVerdict
    drift: Drift


@dataclass(frozen=True)
class Drifts:
    """How far the rows have moved that passed.

    Args:
        rows: the one that has grown most first.
    """

    rows: tuple[RowDrift, ...]

    @property
    def middle(self) -> Drift:
        """The median of all of them, within the medians of their intervals; there must be one at least."""
        drifts = [each.drift for each in self.rows]
        if any(drift.interval is None for drift in drifts):
            return Drift(median(drift.percent for drift in drifts))
        low, high = (median(drift.interval[end] for drift in drifts if drift.interval) for end in (0, 1))
        return Drift(median(drift.percent for drift in drifts), (low, high))

    @property
    def told(self) -> tuple[RowDrift, ...]:
        """Those that have moved: no noise, and more than rounds to nothing where figures have one digit."""
        moved = (each for each in self.rows if abs(each.drift.percent) > LEAST_PERCENT)
        return tuple(each for each in moved if not each.drift.is_noise)

    @property
    def most_up(self) -> RowDrift | None:
        """The one that has grown most; none where none can be told to have grown."""
        return next((each for each in self.told if each.drift.percent > 0), None)

    @property
    def most_down(self) -> RowDrift | None:
        """The one that has shrunk most; none where none can be told to have shrunk."""
        return next((each for each in reversed(self.told) if each.drift.percent < 0), None)


def drifts_of(verdicts: Iterable[RowVerdict]) -> Drifts:
    """Take the rows together that passed, and that were held against a figure."""
    found = [RowDrift(row, row.drift) for row in verdicts if row.verdict is Verdict.PASSED and row.drift]
    return Drifts(tuple(sorted(found, key=lambda each: -each.drift.percent)))
