"""The table of counted instructions: a line a signature, grouped by test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.report.measurements import Table, lay_out

EXPENDABLE = ("calls", "rounds", "samples", "local", "miss/hit", "hit+", "miss+")
LEGEND = (
    "{units}: the least of the calls that were counted. miss: first call after the sharding caches were "
    "cleared; hit: a later call; local: the same op on plain local shards; miss+, hit+: how many more the "
    "greatest count has. samples: misses + hits counted, each of them proved by the cache counters. More "
    "columns and notes with -v."
)
COLUMNS: tuple[tuple[str, Callable[[Measurement], float | None]], ...] = (
    ("cold", lambda m: m.figure(State.COLD)),
    ("miss", lambda m: m.figure(State.MISS)),
    ("miss+", lambda m: _spread(m.of(State.MISS))),
    ("hit", lambda m: m.steady.figure if m.steady else None),
    ("hit+", lambda m: _spread(m.steady)),
    ("local", lambda m: m.figure(State.LOCAL)),
)


def build_instructions_table(measured: Mapping[str, Sequence[Measurement]], verbose: bool = False) -> Table:
    """Lay out what was counted."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    columns = [(title, of) for title, of in COLUMNS if title != "cold" or any(map(of, everything))]

    def cells(measurement: Measurement) -> list[str]:
        counts = [_text(of(measurement)) for _, of in columns]
        return [*counts, _ratio(measurement), _samples(measurement)]

    titles = [*(title for title, _ in columns), "miss/hit", "samples"]
    return lay_out(titles, measured, cells, EXPENDABLE, verbose)


def _spread(samples: Samples | None) -> int | None:
    return samples.span if samples else None


def _text(count: float | None) -> str:
    return "-" if count is None else f"{count:,}"


def _ratio(measurement: Measurement) -> str:
    miss, hit = measurement.figure(State.MISS), measurement.figure(State.HIT)
    return f"{miss / hit:,.1f}" if miss and hit else "-"


def _samples(measurement: Measurement) -> str:
    misses, steady = measurement.of(State.MISS), measurement.steady
    return f"{len(misses.values) if misses else 0}+{len(steady.values) if steady else 0}"
