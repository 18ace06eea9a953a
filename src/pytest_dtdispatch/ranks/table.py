"""The one table of a run on many ranks: what ranks have in the middle, and which is the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.ranks.merge import RankSamples
from pytest_dtdispatch.report.document import Column, Document, View
from pytest_dtdispatch.report.measurements import column_scale, lay_out

EXPENDABLE = ("calls", "rounds", "samples", "local", "overhead", "spread", "slowest")
LEGEND = (
    "Of each rank the median of its samples. miss, hit, cold, local: the median of these over ranks; "
    "slowest: the greatest of them, and its rank; spread: how much slower that rank is than the fastest, "
    "against the median over ranks; overhead: hit - local. samples: misses + hits recorded on all ranks, "
    "each of them proved by the cache counters. More columns and notes with -v."
)


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out what was measured on many ranks."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    states = [state for state in ("cold", "miss", "hit") if state != "cold" or _has_cold(everything)]
    of_states = [_StateColumns(state, everything) for state in states]
    local = column_scale(_middle_ns(of_state(m, "local")) for m in everything)
    overhead = column_scale(_overhead_ns(m) for m in everything)

    def cells(measurement: Measurement) -> list[str]:
        return [
            *(cell for each in of_states for cell in each.cells(measurement)),
            local.text(_middle_ns(of_state(measurement, "local"))),
            overhead.text(_overhead_ns(measurement)),
            f"{_count(measurement, 'miss')}+{_count(measurement, 'hit')}",
        ]

    columns = [column for each in of_states for column in each.columns]
    columns += [Column("local", local.name), Column("overhead", overhead.name), Column("samples")]
    return Document((lay_out(columns, measured, cells, EXPENDABLE, view),), LEGEND)


def of_state(measurement: Measurement, state: str) -> Samples | None:
    """Samples of a state; a hit is any call in the steady state."""
    if state == "hit":
        return measurement.of(State.HIT) or measurement.of(State.CALL)
    return measurement.of(State(state))


class _StateColumns:
    """The columns of one state: over ranks, the slowest, the spread."""

    def __init__(self, state: str, measurements: Sequence[Measurement]) -> None:
        self._state = state
        self._unit = column_scale(_middle_ns(of_state(m, state)) for m in measurements)
        self.columns = (Column(state, self._unit.name), Column("slowest"), Column("spread"))

    def cells(self, measurement: Measurement) -> tuple[str, str, str]:
        samples = of_state(measurement, self._state)
        middle = self._unit.text(_middle_ns(samples))
        if not isinstance(samples, RankSamples):
            return middle, "-", "-"
        rank, ns = samples.slowest
        return middle, f"{self._unit.text(ns)} r{rank}", f"{samples.spread:.0%}"


def _middle_ns(samples: Samples | None) -> float | None:
    if isinstance(samples, RankSamples):
        return samples.middle_ns
    return samples.median_ns if samples else None


def _overhead_ns(measurement: Measurement) -> float | None:
    steady, local = (_middle_ns(of_state(measurement, state)) for state in ("hit", "local"))
    return steady - local if steady is not None and local is not None else None


def _count(measurement: Measurement, state: str) -> int:
    samples = of_state(measurement, state)
    if isinstance(samples, RankSamples):
        return sum(len(ns) for _, ns in samples.by_rank)
    return len(samples.ns) if samples else 0


def _has_cold(measurements: Sequence[Measurement]) -> bool:
    return any(of_state(measurement, "cold") for measurement in measurements)
