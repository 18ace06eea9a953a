"""The table of signatures of a page: a line of figures for each, with its bar, and its samples below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Contains, Measurement, Samples, State
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report import row_bars
from pytest_dtdispatch.report.bars import LogScale
from pytest_dtdispatch.report.drawing import Tick
from pytest_dtdispatch.report.html_parts import (
    Html,
    below_label,
    element,
    joined,
    name_of,
    scrolling,
    sorting_head,
)
from pytest_dtdispatch.report.html_verdicts import badge
from pytest_dtdispatch.report.notes import mark
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.rows import CostedRow, by_cost
from pytest_dtdispatch.report.sample_charts import distribution
from pytest_dtdispatch.report.units import MICROSECONDS, MILLISECONDS, short_count, short_time

SCALES = {
    **dict.fromkeys(("cold", "miss"), MILLISECONDS),
    **dict.fromkeys(("hit", "local", "overhead"), MICROSECONDS),
}
NONE = "-"  # the sort key of a cell without a figure
UNPROVED = "unproved"
EVERY = "every"  # what a column is of that compares states, and is hidden where one is chosen


@dataclass(frozen=True)
class Figure:
    """A column of figures.

    Args:
        title: of the column; its unit behind it.
        state: the one that the filter by states calls it by.
        value: of a row.
        samples: whose noise stands beside it.
        text: writes a value.
    """

    title: str
    state: str
    value: Callable[[Measurement], float | None]
    samples: Callable[[Measurement], Samples | None]
    text: Callable[[float | None], str]


@dataclass(frozen=True)
class TableRow:
    """A row with what is known of it beside its samples."""

    test: str
    costed: CostedRow
    verdict: Verdict | None

    @property
    def row(self) -> Measurement:
        """What was measured."""
        return self.costed.row


def short_text(run: ReportedRun) -> Callable[[float], str]:
    """Choose how figures of a run are written beside charts."""
    return short_time if run.unit.is_time else short_count


def rows_table(run: ReportedRun, verdicts: Mapping[tuple[str, str], Verdict]) -> Html:
    """Write all rows of signatures and named calls, the dearest of a test first."""
    rows = list(_rows(run, verdicts))
    if not rows:
        return joined(())
    measured = [one.row for one in rows]
    figures = [figure for figure in _figures(run) if any(figure.value(row) is not None for row in measured)]
    scale, text = row_bars.scale_of(measured), short_text(run)
    ticks = row_bars.ticks_of(scale, text) if scale else []
    writer = _Writer(figures, scale, ticks, text, has_verdicts=bool(verdicts))
    caption = element("caption", f"{many(len(rows), 'row')}, the dearest of each test first.")
    body = (writer.body(one) for one in rows)
    table = element("table", caption, writer.head(), *body, id="rows", class_="rows sortable", role="table")
    return joined((_controls(rows, figures), row_bars.key() if scale else "", scrolling(table)))


def _rows(run: ReportedRun, verdicts: Mapping[tuple[str, str], Verdict]) -> Iterator[TableRow]:
    for test, rows in run.calls.items():
        for contains in dict.fromkeys(row.contains for row in rows):
            for costed in by_cost([row for row in rows if row.contains is contains]):
                yield TableRow(test, costed, verdicts.get((test, costed.row.label)))


def _figures(run: ReportedRun) -> list[Figure]:
    """List columns as the table of the terminal has them."""
    is_time = run.unit.is_time

    def of(
        title: str,
        state: str,
        value: Callable[[Measurement], float | None],
        samples: Callable[[Measurement], Samples | None] = lambda row: None,
    ) -> Figure:
        if not is_time:
            return Figure(title, state, value, samples, _count)
        return Figure(f"{title} {SCALES[title].name}", state, value, samples, SCALES[title].text)

    return [
        of("cold", "cold", lambda row: row.figure(State.COLD), lambda row: row.of(State.COLD)),
        of("miss", "miss", lambda row: row.figure(State.MISS), lambda row: row.of(State.MISS)),
        of("hit", "hit", lambda row: row.steady.figure if row.steady else None, lambda row: row.steady),
        of("local", "local", lambda row: row.figure(State.LOCAL), lambda row: row.of(State.LOCAL)),
        of("overhead", EVERY, lambda row: row.overhead_ns),
        Figure("miss/hit", EVERY, lambda row: row.miss_over_hit, lambda row: None, _ratio),
    ]


def states_of(row: Measurement) -> list[str]:
    """Name the states that a row is found by; a call that never propagates is a later call, as a hit is."""
    states = {str(State.HIT if samples.state is State.CALL else samples.state) for samples in row.recorded()}
    return sorted(states)


def marks_of(one: TableRow) -> list[str]:
    """Name what a row is found by beside its states: a verdict, noise, no proof."""
    marks = [str(one.verdict)] if one.verdict else []
    marks += ["noisy"] * bool(one.row.noisy)
    return [*marks, *[UNPROVED] * (one.row.proof not in ("proved", "unpropagated"))]


@dataclass(frozen=True)
class _Writer:
    """Writes lines of one table."""

    figures: Sequence[Figure]
    scale: LogScale | None
    ticks: list[Tick]
    text: Callable[[float], str]
    has_verdicts: bool

    def head(self) -> Html:
        cells = [_head("signature", "label", first="ascending")]
        cells += [_head("verdict", first="ascending")] * self.has_verdicts
        cells += [_head("calls", "num"), _head("share", "num")]
        cells += [_head(figure.title, "num", figure.state) for figure in self.figures]
        if self.scale:
            bars = row_bars.bar_axis(self.ticks)
            cells.append(element("th", bars, class_="chart axis", scope="col", role="columnheader"))
        cells.append(_head("proof", first="ascending"))
        return element("thead", element("tr", *cells, role="row"), role="rowgroup")

    def body(self, one: TableRow) -> Html:
        row = one.row
        cells = [element("th", *_labels(one), scope="row", role="rowheader", class_="label")]
        if self.has_verdicts:
            cells.append(_cell(badge(one.verdict) if one.verdict else "", "", "verdict"))
        cells.append(_cell(f"{row.calls:,}", "num", "calls", row.calls))
        share = one.costed.share
        cells.append(_cell("-" if share is None else f"{share:.1%}", "num", "share", share, is_key=True))
        cells += [self._figure(figure, row) for figure in self.figures]
        if self.scale:
            bar = row_bars.row_bar(row, self.scale, self.ticks, self.text)
            cells.append(element("td", bar, class_="chart", role="cell"))
        said = ", ".join([row.proof, *["noisy"] * bool(row.noisy)])
        cells.append(_cell(element("span", said, class_=mark(row)[1].value), "num proof", "proof"))
        more = element("td", *self._more(row), colspan=len(cells), role="cell")
        return element(
            "tbody",
            element("tr", *cells, role="row"),
            element("tr", more, role="row", class_="more"),
            role="rowgroup",
            data_op=row.op,
            data_states=" ".join(states_of(row)),
            data_marks=" ".join(marks_of(one)),
        )

    def _figure(self, figure: Figure, row: Measurement) -> Html:
        value, samples = figure.value(row), figure.samples(row)
        is_noisy = samples is not None and samples.is_noisy
        noise = _noise(samples) if value is not None else ""
        inner = joined((figure.text(value), element("span", noise, class_="noise") if samples else ""))
        kind = "num noisy" if is_noisy else "num"
        return _cell(inner, kind, figure.title, value, is_key=True, state=figure.state)

    def _more(self, row: Measurement) -> Iterator[Html]:
        yield from (element("p", note, class_="notice") for note in row.notes)
        charts = [distribution(samples, self.text) for samples in row.recorded()]
        taken = sum(samples.count for samples in row.recorded())
        summary = element("summary", f"{taken:,} samples")
        about = (element("p", text, class_="about") for text in _about(row))
        yield element("details", summary, *about, element("div", *charts, class_="charts"))


def _about(row: Measurement) -> Iterator[str | Html]:
    """Say what is known of a row beside its figures."""
    if row.full_label != cut_name(row.label):
        yield joined(("in full: ", name_of(row.full_label)))
    on = f" on mesh {row.mesh}" if row.mesh else ""
    yield f"{cut_name(row.op)}{on}, {row.contains}; {row.proof}, {row.rounds:,} rounds"
    yield from row.remarks


def _labels(one: TableRow) -> Iterator[Html]:
    label = cut_name(one.row.label)
    yield name_of(label, class_="name")
    kind = "" if one.row.contains is Contains.DISPATCH else f" ({one.row.contains})"
    yield below_label(one.test, kind)


def _head(title: str, kind: str = "", state: str = "", first: str = "") -> Html:
    return sorting_head(title, first, role="columnheader", class_=kind, data_state=state)


def _cell(
    inner: str,
    kind: str,
    title: str,
    value: float | None = None,
    *,
    is_key: bool = False,
    state: str = "",
) -> Html:
    key = f"{value:.6g}" if value is not None else NONE if is_key else ""
    return element("td", inner, role="cell", class_=kind, data_title=title, data_key=key, data_state=state)


def _noise(samples: Samples | None) -> str:
    if samples is None:
        return ""
    if not samples.unit.is_time:
        return f"+{samples.span:,}" if samples.span else ""
    share = "" if samples.scatter is None else f"±{samples.scatter:.0%}"
    return f"{share} noisy" if samples.is_noisy else share


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _controls(rows: Sequence[TableRow], figures: Sequence[Figure]) -> Html:
    """Write what filters rows, which shows where scripts run."""
    ops = sorted({one.row.op for one in rows})
    states = [figure.state for figure in figures if figure.state != EVERY]
    marks = {name: sum(name in marks_of(one) for one in rows) for one in rows for name in marks_of(one)}
    text = element("input", type="search", name="text", autocomplete="off")
    return element(
        "form",
        element("label", "find", text),
        _select("op", "op", [(op, cut_name(op, 60)) for op in ops]),
        _select("state", "state", [(state, state) for state in states]),
        _select("marks", "only", [(name, f"{name} ({count:,})") for name, count in marks.items()]),
        element("button", "show all", type="reset"),
        element("output", "", id="shown", role="status"),
        id="controls",
        class_="controls",
        aria_label="filter the table of signatures",
        role="search",
    )


def _select(name: str, title: str, choices: Sequence[tuple[str, str]]) -> Html:
    options = (element("option", text, value=value) for value, text in choices)
    return element(
        "label", title, element("select", Html('<option value="">all</option>'), *options, name=name)
    )
