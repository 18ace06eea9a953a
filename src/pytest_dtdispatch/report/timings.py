"""The table of a region that was timed call by call: a line a signature, from all its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.core.measurement import (
    Contains,
    Figures,
    Measurement,
    Samples,
    State,
    refused_of,
)
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.report.document import Column, Document, Group, Table, View, one_line
from pytest_dtdispatch.report.marks import proved, title_of
from pytest_dtdispatch.report.measurements import LEGEND, MEANINGS, SCALES, SCATTER, line_of, scatter_text

TITLES = ("miss", "hit", SCATTER)
NOTHING = "nothing was timed: no op on DTensors ran in the region"


def document(title: str, timed: Mapping[Signature, Sequence[Figures]]) -> Document:
    """Lay out what each call of each signature gave."""
    rows = [
        Measurement(str(op), op.full, op.op, op.place[1:], Contains.DISPATCH, len(calls), together(calls))
        for op, calls in timed.items()
    ]
    if not rows:
        return Document((one_line(NOTHING),))

    def cells(row: Measurement) -> list[str]:
        return [
            str(row.calls),
            SCALES["miss"].text(row.figure(State.MISS)),
            scatter_text(row.of(State.MISS)),
            SCALES["hit"].text(row.steady_ns),
            scatter_text(row.steady),
        ]

    columns = [Column("calls")]
    for state in ("miss", "hit"):
        columns += [Column(state, SCALES[state].name), Column(SCATTER)]
    lines = tuple(line_of(row, cells(row), View()) for row in rows)
    group = Group(f"{title} ({Contains.DISPATCH})", lines)
    table = Table(tuple(columns), (group,), proof_title=title_of(lines))
    return Document((table, *proved(rows)), LEGEND, {name: MEANINGS[name] for name in TITLES})


def together(calls: Sequence[Figures]) -> Figures:
    """Give the samples of several calls as those of one.

    Example:
        >>> hits = Figures(1, (Samples(State.HIT, (7, 9)),))
        >>> together([hits, hits]).samples[0].values
        (7, 9, 7, 9)
    """
    by_state: dict[State, list[Samples]] = {}
    for samples in (samples for call in calls for samples in call.samples):
        by_state.setdefault(samples.state, []).append(samples)
    return Figures(
        sum(call.rounds for call in calls),
        tuple(
            Samples(state, tuple(value for one in all_of for value in one.values), refused_of(all_of))
            for state, all_of in by_state.items()
        ),
        tuple(dict.fromkeys(note for call in calls for note in call.notes)),
    )
