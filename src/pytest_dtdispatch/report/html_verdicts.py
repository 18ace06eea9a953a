"""What gates said, first on a page: how each ended, and a table of verdicts with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.core.results import number_name, state_name
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document, Tone
from pytest_dtdispatch.report.drawing import drawing, percent, rule
from pytest_dtdispatch.report.html_parts import Html, beside, element, joined, name_of, scrolling
from pytest_dtdispatch.report.html_text import OWN_PAGE, html_text
from pytest_dtdispatch.report.judgements import TONES, drift_lines, verdict_counts
from pytest_dtdispatch.report.reported_run import ReportedGate, ReportedRun
from pytest_dtdispatch.report.units import short_count, short_time

# The worst first: one row may have several.
WORST = (
    *(Verdict.REGRESSED, Verdict.MISSING, Verdict.MISMATCHED, Verdict.DISABLED, Verdict.CONTAMINATED),
    *(Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.NEW, Verdict.PASSED),
)
TITLES = ("verdict", "row", "change", "99 % interval, and the threshold", "held against", "what to do")
CHART = 22
LEAST = 1e-3  # ratio that is drawn


def badge(verdict: Verdict) -> Html:
    """Write a verdict, in a word and a colour."""
    return element("span", str(verdict), class_=f"badge {TONES.get(verdict, Tone.BAD).value}")


def verdicts_by_row(run: ReportedRun) -> dict[tuple[str, str], Verdict]:
    """Give the worst verdict of each row, by its test and its label."""
    by_name: dict[str, list[Verdict]] = {}
    for gate in run.gates:
        for one in gate.verdicts:
            by_name.setdefault(one.row, []).append(one.verdict)
    found = {}
    for test, rows in run.measured.items():
        for row in rows:
            names = [state_name(test, row, samples) for samples in row.samples]
            names.append(number_name(test, row.label))
            said = [verdict for name in names for verdict in by_name.get(name, ())]
            if said:
                found[test, row.label] = min(said, key=WORST.index)
    return found


def gate_section(gate: ReportedGate) -> Html:
    """Say how a gate ended; every row that has not just passed, then the rest, folded."""
    kind, word = ("bad", "Failed") if gate.has_failed else ("good", "Passed")
    counts = "".join(span.text for span in verdict_counts(gate.verdicts)) or "no row was judged"
    banner = element(
        "div",
        element("p", element("strong", word), ": ", counts),
        element("p", "held against ", name_of(gate.where), class_="about"),
        class_=f"banner {kind}",
    )
    told = sorted(gate.verdicts, key=lambda one: WORST.index(one.verdict))
    others = [one for one in told if one.verdict is not Verdict.PASSED]
    passed = [one for one in told if one.verdict is Verdict.PASSED]
    folded = element("details", element("summary", f"{len(passed):,} passed"), _table(passed))
    full = element(
        "details", element("summary", "as the terminal says it"), html_text(gate.document, OWN_PAGE)
    )
    drift = html_text(Document(tuple(drift_lines(gate.verdicts))), OWN_PAGE)
    return joined((banner, _table(others) if others else "", folded if passed else "", drift, full))


def _table(verdicts: Sequence[RowVerdict]) -> Html:
    figures = [dict(one.figures) for one in verdicts]
    reach = _reach(figures)
    has_intervals = any("ratio_low" in of for of in figures)
    titles = [title for n, title in enumerate(TITLES) if n != 3 or has_intervals]
    heads = (element("th", title, scope="col", role="columnheader") for title in titles)
    head = element("thead", element("tr", *heads, role="row"), role="rowgroup")
    rows = (_row(one, of, reach, has_intervals) for one, of in zip(verdicts, figures, strict=True))
    body = element("tbody", *rows, role="rowgroup")
    # A narrow screen shows lines as blocks, which are a table by these roles alone.
    return scrolling(element("table", head, body, class_="verdicts", role="table"))


def _reach(figures: Sequence[Mapping[str, float]]) -> float:
    """Choose how far intervals are drawn on either side of no change: as the logarithm of a ratio."""
    names = ("ratio_low", "ratio_high")
    ratios = [of[name] for of in figures for name in names if LEAST < of.get(name, 0.0) < 1 / LEAST]
    limits = [1 + of.get("threshold_percent", 0.0) / 100 for of in figures]
    return 1.15 * max((abs(math.log(ratio)) for ratio in (*ratios, *limits)), default=0.1) or 0.1


def _row(one: RowVerdict, figures: Mapping[str, float], reach: float, has_intervals: bool) -> Html:
    name = element("th", name_of(cut_name(one.row, 300)), scope="row", role="rowheader", class_="l")
    cells = [_cell("", badge(one.verdict)), name, _cell("change", joined(_change(figures)), "r")]
    if has_intervals:
        cells.append(_cell("", _interval(figures, reach), "interval"))
    cells += [_cell("held against", one.criterion), _cell("what to do", one.remedy, "l")]
    return element("tr", *cells, role="row")


def _cell(title: str, inner: str, kind: str = "") -> Html:
    return element("td", inner, role="cell", class_=kind, data_title=title if inner else "")


def _change(figures: Mapping[str, float]) -> Iterator[str | Html]:
    if figures.keys() >= {"ratio", "base_ns", "head_ns"}:
        yield f"{figures['ratio'] - 1:+.1%}"
        yield beside(f"{short_time(figures['base_ns'])} to {short_time(figures['head_ns'])}")
    elif figures.keys() >= {"expected", "found"}:
        yield f"{figures['change_percent']:+.1f}%" if "change_percent" in figures else "-"
        yield beside(f"{short_count(figures['expected'])} to {short_count(figures['found'])}")


def _interval(figures: Mapping[str, float], reach: float) -> Html:
    """Draw an interval of a ratio around no change, with the most that is allowed."""
    if not figures.keys() >= {"ratio_low", "ratio_high"}:
        return Html("")

    def place(ratio: float) -> float:
        change = math.log(min(max(ratio, LEAST), 1 / LEAST))
        return min(max((change / reach + 1) / 2, 0.0), 1.0)

    low, high, limit = figures["ratio_low"], figures["ratio_high"], figures.get("threshold_percent", 0.0)
    y = CHART // 2
    said = f"from {low - 1:+.1%} to {high - 1:+.1%}, at most {limit:+.1f}%"
    line = element("line", x1=percent(place(low)), x2=percent(place(high)), y1=y, y2=y, class_="span")
    dot = element("circle", cx=percent(place(figures.get("ratio", 1.0))), cy=y, r="4", class_="point")
    marks = (rule(place(1.0), 0, CHART, "grid"), rule(place(1 + limit / 100), 0, CHART, "limit"))
    text = beside(said)
    return joined((drawing(said, CHART, *marks, line, dot), text))
