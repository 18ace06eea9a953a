"""The one table of a run on many ranks: what ranks have in the middle, and which is the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.report.document import Column, Document, View
from pytest_dtdispatch.report.marks import proved
from pytest_dtdispatch.report.measurements import MEANINGS as OF_TIMES
from pytest_dtdispatch.report.measurements import SCALES, lay_out
from pytest_dtdispatch.report.scales import Scale

EXPENDABLE = ("rounds", "samples", "local", "total", "overhead", "calls", "spread", "slowest")
LEGEND = "A figure is the median over ranks of the median of each."
MEANINGS = {
    **OF_TIMES,
    "slowest": "the greatest of these medians, and its rank",
    "spread": "how much slower that rank is than the fastest, against the median over ranks",
    "samples": "misses + hits recorded on all ranks",
}


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out what was measured on many ranks."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    has_cold = any(measurement.of(State.COLD) for measurement in everything)
    states = (State.COLD, State.MISS, State.HIT) if has_cold else (State.MISS, State.HIT)
    scales = {state: SCALES[str(state)] for state in (*states, State.LOCAL)}
    overhead = SCALES["overhead"]

    def cells(measurement: Measurement) -> list[str]:
        return [
            *(cell for state in states for cell in _state_cells(measurement, state, scales[state])),
            scales[State.LOCAL].text(_middle_ns(measurement, State.LOCAL)),
            overhead.text(_overhead_ns(measurement)),
            f"{_count(measurement, State.MISS)}+{_count(measurement, State.HIT)}",
        ]

    columns = [
        *(Column(*of) for state in states for of in ((state, scales[state].name), ("slowest",), ("spread",))),
        Column("local", scales[State.LOCAL].name),
        Column("overhead", overhead.name),
        Column("samples"),
    ]
    table = lay_out(columns, measured, cells, EXPENDABLE, view)
    return Document((table, *proved(everything)), LEGEND, MEANINGS)


def _of(measurement: Measurement, state: State) -> Samples | None:
    """Give the samples of a state; a hit is any call in the steady state."""
    return measurement.steady if state is State.HIT else measurement.of(state)


def _state_cells(measurement: Measurement, state: State, unit: Scale) -> tuple[str, str, str]:
    """Write the middle over ranks, the slowest rank, and the spread."""
    samples, middle = _of(measurement, state), unit.text(_middle_ns(measurement, state))
    if samples is None or not samples.by_rank:
        return middle, "-", "-"
    rank, ns = samples.slowest
    return middle, f"{unit.text(ns)} r{rank}", f"{samples.spread:.0%}"


def _middle_ns(measurement: Measurement, state: State) -> float | None:
    samples = _of(measurement, state)
    return samples.middle_ns if samples else None


def _overhead_ns(measurement: Measurement) -> float | None:
    steady, local = (_middle_ns(measurement, state) for state in (State.HIT, State.LOCAL))
    return steady - local if steady is not None and local is not None else None


def _count(measurement: Measurement, state: State) -> int:
    samples = _of(measurement, state)
    return samples.count if samples else 0
