"""How ranks differ: a table of figures, with the median of each rank in a small chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.report.drawing import Tick, axis, drawing, percent, rule
from pytest_dtdispatch.report.html_parts import (
    Html,
    below_label,
    beside,
    element,
    joined,
    name_of,
    scrolling,
    sorting_head,
)
from pytest_dtdispatch.report.reported_run import ReportedRun

HEIGHT, FOOT = 18, 14
EDGE = 0.02  # share of the width that a point needs at either end
FEW = 16  # ranks that are listed one by one
CAPTION = "The widest spread first. A point is the median of a rank, the line the median over ranks."
TITLES = (("signature", "ascending"), ("state", "ascending"), ("median", ""), ("slowest", ""), ("spread", ""))


def ranks_section(run: ReportedRun, text: Callable[[float], str]) -> Html:
    """Write how ranks differ in every row; nothing of a run in one process."""
    found = sorted(_found(run), key=lambda one: -one[2].spread)
    if not found:
        return joined(())
    heads = (sorting_head(title, first) for title, first in TITLES)
    head = element("thead", element("tr", *heads, element("th", "ranks", scope="col", class_="chart")))
    body = (_row(test, label, samples, text) for test, label, samples in found)
    return scrolling(element("table", element("caption", CAPTION), head, *body, class_="sortable ranks"))


def _found(run: ReportedRun) -> Iterator[tuple[str, str, Samples]]:
    for test, rows in run.measured.items():
        for row in rows:
            for samples in row.recorded():
                if samples.by_rank:
                    yield test, row.label, samples


def _row(test: str, label: str, samples: Samples, text: Callable[[float], str]) -> Html:
    name = element("th", name_of(cut_name(label)), below_label(test), scope="row", class_="l")
    rank, slowest_ns = samples.slowest
    figures = (
        (samples.middle_ns, text(samples.middle_ns)),
        (slowest_ns, f"{text(slowest_ns)} on rank {rank}"),
        (samples.spread, f"{samples.spread:.0%}"),
    )
    cells = (element("td", said, class_="r", data_key=f"{key:.6g}") for key, said in figures)
    listed = ", ".join(f"rank {rank} {text(ns)}" for rank, ns in samples.rank_medians.items())
    more = [beside(listed)] * (len(samples.by_rank) <= FEW)
    chart = element("td", _chart(samples, text), *more, class_="chart")
    return element("tbody", element("tr", name, element("td", str(samples.state)), *cells, chart))


def _chart(samples: Samples, text: Callable[[float], str]) -> Html:
    """Draw the median of each rank on a scale from 0."""
    medians = samples.rank_medians
    high = max(medians.values()) or 1.0

    def place(ns: float) -> float:
        return EDGE + (1 - 2 * EDGE) * ns / high

    dots = (
        element("circle", cx=percent(place(ns)), cy=HEIGHT // 2, r="3.5", class_="point")
        for ns in medians.values()
    )
    ends = axis([Tick(0, "0"), Tick(1, text(high))], HEIGHT + FOOT - 3)
    said = f"medians of {len(medians)} ranks from {text(min(medians.values()))} to {text(high)}"
    return drawing(said, HEIGHT + FOOT, *dots, rule(place(samples.middle_ns), 0, HEIGHT, "figure"), *ends)
