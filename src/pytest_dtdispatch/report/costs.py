"""Rows of a region in the order of what they cost, and which of them a table leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pytest_dtdispatch.core.measurement import Contains, Measurement, State
from pytest_dtdispatch.report.document import Column, Tone, View
from pytest_dtdispatch.report.marks import mark

ENOUGH = 0.95  # of what all rows cost: those that make it are shown
FEW = 5  # rows, which are all shown
COLUMNS = (Column("calls"), Column("share", "%"), Column("total", "%"))
MEANINGS = {
    "calls": "how often the program made the call",
    "share": "of what all rows of the region cost: calls x overhead, or x hit where there is no local",
    "total": "shares added up from the first row",
}


@dataclass(frozen=True)
class CostedRow:
    """A row, and its part of what all rows of a region cost.

    Args:
        row: what was measured.
        share: None where nothing is known of what a call costs.
        total: its share with those of all dearer rows.
    """

    row: Measurement
    share: float | None = None
    total: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of :data:`COLUMNS`."""
        shares = ("-" if share is None else f"{100 * share:.1f}" for share in (self.share, self.total))
        return (f"{self.row.calls:,}", *shares)


def call_cost(row: Measurement) -> float | None:
    """Say what a later call costs above the op on local shards, in the unit of the row.

    Where there is no local row the whole call stands for it. What never hit propagates on every call.
    """
    if row.steady is None:
        return row.figure(State.MISS)
    local = row.figure(State.LOCAL)
    return row.steady.figure if local is None else max(row.steady.figure - local, 0.0)


def by_cost(rows: Sequence[Measurement]) -> list[CostedRow]:
    """Put rows in the order of calls x cost, the dearest first; those without a figure come last.

    Named calls stay in their order: one may run another, and their costs have no sum.
    """
    costs = [
        (cost * row.calls, row)
        for row in rows
        if row.contains is Contains.DISPATCH and (cost := call_cost(row)) is not None
    ]
    costs.sort(key=lambda one: one[0], reverse=True)
    whole = sum(cost for cost, _ in costs)
    if not whole:
        return [CostedRow(row) for row in rows]
    known = {id(row) for _, row in costs}
    totals = accumulate(cost for cost, _ in costs)
    costed = [
        CostedRow(row, cost / whole, min(total / whole, 1.0))
        for (cost, row), total in zip(costs, totals, strict=True)
    ]
    return [*costed, *(CostedRow(row) for row in rows if id(row) not in known)]


def shown(rows: Sequence[CostedRow], view: View) -> tuple[list[CostedRow], str]:
    """Choose the dearest rows, and all that a mark or a note belongs to; say what is left out."""
    left_out = [] if view.verbose or len(rows) <= FEW else [each for each in rows if _is_cheap(each)]
    if len(left_out) < 2:  # a line that says so would take as much room
        return list(rows), ""
    part = sum(each.share or 0.0 for each in left_out)
    more = f"and {len(left_out):,} rows more, which make {100 * part:.1f} % together; -v lists them"
    return [each for each in rows if each not in left_out], more


def _is_cheap(costed: CostedRow) -> bool:
    """Tell a row that nothing is wrong with, and that the dearest rows make enough without."""
    if costed.share is None or costed.total is None or costed.total - costed.share < ENOUGH:
        return False
    return mark(costed.row)[1] is Tone.GOOD and not costed.row.notes
