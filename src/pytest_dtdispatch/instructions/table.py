"""Counted instructions: a line a signature, grouped by test, and where they went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.report.document import Block, Column, Document, Span, Tone, View, one_line
from pytest_dtdispatch.report.marks import proved
from pytest_dtdispatch.report.measurements import BRIEF as OF_BRIEF
from pytest_dtdispatch.report.measurements import MEANINGS as OF_TIMES
from pytest_dtdispatch.report.measurements import lay_out, recorded
from pytest_dtdispatch.report.profile_listing import profile_listing

EXPENDABLE = ("rounds", "samples", "total", "miss/hit", "local", "hit+", "miss+", "calls")
LEGEND = "{units}: the least of the calls that were counted."
MEANINGS = {
    **OF_TIMES,
    "miss+": "how many more the greatest count has",
    "hit+": "how many more the greatest count has",
}
BRIEF = {
    **OF_BRIEF,
    "miss+": "what the greatest count has more",
    "hit+": "what the greatest count has more",
}
COLUMNS: tuple[tuple[str, Callable[[Measurement], float | None]], ...] = (
    ("cold", lambda m: m.figure(State.COLD)),
    ("miss", lambda m: m.figure(State.MISS)),
    ("miss+", lambda m: _spread(m.of(State.MISS))),
    ("hit", lambda m: m.steady.figure if m.steady else None),
    ("hit+", lambda m: _spread(m.steady)),
    ("local", lambda m: m.figure(State.LOCAL)),
)


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out what was counted, and list the functions that the instructions of profiled calls went to."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    columns = [(title, of) for title, of in COLUMNS if title != "cold" or any(map(of, everything))]

    def cells(measurement: Measurement) -> list[str]:
        counts = [_text(of(measurement)) for _, of in columns]
        return [*counts, _ratio(measurement), recorded(measurement)]

    titles = [*(title for title, _ in columns), "miss/hit", "samples"]
    table = lay_out([*map(Column, titles)], measured, cells, EXPENDABLE, view)
    legend = LEGEND.format(units=view.counted.capitalize())
    return Document((table, *proved(everything), *_profiles(measured)), legend, MEANINGS, BRIEF)


def _profiles(measured: Mapping[str, Sequence[Measurement]]) -> Iterator[Block]:
    for test, of_test in measured.items():
        for measurement in of_test:
            for samples in measurement.samples:
                if (profile := samples.profile) is not None:
                    title = f"profile of a {samples.state}: {test}::{measurement.label}"
                    yield one_line(Span(title, Tone.STRONG))
                    yield profile_listing(profile)


def _spread(samples: Samples | None) -> int | None:
    return samples.span if samples else None


def _text(count: float | None) -> str:
    return "-" if count is None else f"{count:,}"


def _ratio(measurement: Measurement) -> str:
    miss, hit = measurement.figure(State.MISS), measurement.figure(State.HIT)
    return f"{miss / hit:,.1f}" if miss and hit else "-"
