"""How far rows that passed have moved since their baseline was set: together, the furthest, and each."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.core.verdicts import Drift
from pytest_dtdispatch.gates.drifts import LEAST_PERCENT, Drifts, RowDrift
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Folded,
    Group,
    Line,
    Paragraph,
    Table,
    Tone,
    Wrap,
    paragraph,
)

NOISE = "noise"


def drift_blocks(drifts: Drifts, since: str = "") -> Iterator[Block]:
    """Say how far they have moved; nothing where none was held against a figure."""
    if not drifts.rows:
        return
    count = len(drifts.rows)
    rows = f"{count:,} passed row{'s' * (count > 1)}{f' since {since}' * bool(since)}"
    intervals = " (99 % intervals)" if drifts.middle.interval else ""
    yield _detail(f"drift of {rows}{intervals}: {_together(drifts)}", 1)
    for word, furthest in (("up", drifts.most_up), ("down", drifts.most_down)):
        if furthest is not None:
            yield _detail(f"most {word}: {_row_text(furthest)}", 2)
    yield Folded("drift of each row that passed", (_table(drifts),))


def _together(drifts: Drifts) -> str:
    """Take them together: what is noise has no figure but its interval."""
    if drifts.middle.interval is None:
        rest, all_rest = f"within {LEAST_PERCENT:g} %", ""
    else:
        rest, all_rest = NOISE, f", median {interval_text(drifts.middle)}"
    if not drifts.told:
        return f"all {rest}{all_rest}"
    unmoved = len(drifts.rows) - len(drifts.told)
    return f"median {drift_text(drifts.middle)}{f', {unmoved:,} {rest}' * bool(unmoved)}"


def drift_text(drift: Drift) -> str:
    """Write a drift with its interval, where it has one; of noise the interval alone.

    Example:
        >>> drift_text(Drift(6.5, (4.0, 8.4))), drift_text(Drift(0.5, (-1.0, 2.0)))
        ('+6.5 % (+4.0 % to +8.4 %)', 'noise (-1.0 % to +2.0 %)')
    """
    figure = figure_text(drift)
    return f"{figure} ({interval_text(drift)})" if drift.interval else figure


def figure_text(drift: Drift) -> str:
    """Write a drift alone, and of noise that it is that."""
    return NOISE if drift.is_noise else f"{drift.percent:+.1f} %"


def interval_text(drift: Drift) -> str:
    """Write the interval of a drift; empty where it has none."""
    return "{:+.1f} % to {:+.1f} %".format(*drift.interval) if drift.interval else ""


def _row_text(each: RowDrift) -> str:
    return f"{drift_text(each.drift)}: {each.row.row} ({each.row.criterion})"


def _table(drifts: Drifts) -> Table:
    has_intervals = drifts.middle.interval is not None
    columns = (Column("drift"), *([Column("99 % interval")] if has_intervals else []), Column("against"))
    lines = tuple(_line(each, has_intervals) for each in drifts.rows)
    return Table(columns, (Group("", lines),), label_title="row", proof_title="", label_tone=Tone.PLAIN)


def _line(each: RowDrift, has_intervals: bool) -> Line:
    interval = [interval_text(each.drift)] if has_intervals else []
    return Line(each.row.row, (figure_text(each.drift), *interval, each.row.criterion))


def _detail(text: str, indent: int) -> Paragraph:
    return paragraph(text, indent=indent, hanging=1, wrap=Wrap.SPACES)
