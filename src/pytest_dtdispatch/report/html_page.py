"""A run as one page of HTML that loads nothing: what gates said, budgets, rows, samples, environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.forms import REPORT_TITLE
from pytest_dtdispatch.core.measurement import Contains, Measurement
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.html_course import course_section
from pytest_dtdispatch.report.html_frame import Section, framed
from pytest_dtdispatch.report.html_parts import Html, beside, element, joined, name_of, scrolling
from pytest_dtdispatch.report.html_rows import rows_table, short_text
from pytest_dtdispatch.report.html_text import OWN_PAGE, html_text
from pytest_dtdispatch.report.html_verdicts import gate_section, verdicts_by_row
from pytest_dtdispatch.report.rank_charts import ranks_section
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.rows import profile_listing
from pytest_dtdispatch.report.sample_charts import distribution

BUDGET = "budget"  # the kind that stands before the rows
OWN_ROWS = {"compiled": Contains.COMPILED, "compared": Contains.COMPARED}
TITLES = {
    "steps": "Counts of steps",
    "scaling": "How costs grow",
    "compiled": "Compiled functions",
    "compared": "Variants compared",
}
NO_ROWS = "No signature or call was measured."
GONE_STATES = "A figure is the quietest block: of seven blocks of neighbouring samples the lowest median."


def html_page(runs: Sequence[ReportedRun]) -> str:
    """Write a page of a run; of several the last one, with the course over all of them.

    Args:
        runs: at least one, the oldest first.
    """
    run = runs[-1]
    return framed(REPORT_TITLE, _header(run), _sections(run, runs))


def in_order(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Put runs in the order they were taken; those of one moment, by their files."""
    return sorted(runs, key=lambda run: (run.taken, run.where))


def _header(run: ReportedRun) -> Iterator[Html]:
    yield element("h1", REPORT_TITLE)
    rows = sum(1 for _ in run.rows())
    where = joined((" from ", name_of(run.where))) if run.where else ""
    tests, taken = sum(map(bool, run.measured.values())), run.taken or "at an unknown time"
    said = f"{many(rows, 'row')} in {many(tests, 'test')}, taken {taken}"
    yield element("p", said, where, class_="about")
    cpu, torch, device, python = map(run.environment.get, ("CPU", "torch version", "device", "Python"))
    known = (cpu, torch and f"torch {torch}", device, python)
    yield element("p", ", ".join(filter(None, known)), class_="about")


def _sections(run: ReportedRun, runs: Sequence[ReportedRun]) -> Iterator[Section]:
    text = short_text(run)
    yield Section("verdicts", "Verdicts", joined(map(gate_section, run.gates)))
    yield Section("notices", "To know first", html_text(run.notices, OWN_PAGE))
    yield Section("budget", "Budget", joined(_of_kind(run, BUDGET)))
    yield Section("signatures", "Signatures and calls", joined(_rows(run)))
    if len(runs) > 1:
        yield Section("course", f"Course over {len(runs)} runs", course_section(runs, text))
    yield Section("ranks", "Ranks", ranks_section(run, text))
    for kind in dict.fromkeys(one.kind for one in run.documents):
        if kind != BUDGET:
            own = joined((*_of_kind(run, kind), *_own_rows(run, kind)))
            yield Section(f"kind-{_anchor(kind)}", TITLES.get(kind, kind.capitalize()), own)
    yield Section("profiles", "Profiles", joined(_profiles(run)))
    yield Section("environment", "Environment", _environment(run))


def _anchor(kind: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in kind)


def _of_kind(run: ReportedRun, kind: str) -> Iterator[Html]:
    return (html_text(one.document, OWN_PAGE) for one in run.documents if one.kind == kind)


def _rows(run: ReportedRun) -> Iterator[Html]:
    table = rows_table(run, verdicts_by_row(run))
    if table or not run.documents:
        yield table or element("p", NO_ROWS)
    yield html_text(run.explained, OWN_PAGE)
    if table and run.unit.is_time:
        yield element("p", GONE_STATES, class_="hint")


def _own_rows(run: ReportedRun, kind: str) -> Iterator[Html]:
    """Draw the samples of rows that stand in the table of their kind."""
    contains = OWN_ROWS.get(kind)
    for test, rows in run.measured.items():
        for row in rows:
            if row.contains is contains and any(row.recorded()):
                yield _folded_samples(run, test, row)


def _folded_samples(run: ReportedRun, test: str, row: Measurement) -> Html:
    charts = (distribution(samples, short_text(run)) for samples in row.recorded())
    summary = element("summary", "samples of ", name_of(cut_name(row.label)), " in ", name_of(cut_name(test)))
    return element("details", summary, element("div", *charts, class_="charts"))


def _profiles(run: ReportedRun) -> Iterator[Html]:
    for test, rows in run.measured.items():
        for row in rows:
            for samples in row.samples:
                if (profile := samples.profile) is not None:
                    what = (f"{samples.state}: ", name_of(cut_name(row.label)))
                    yield element("h3", *what, beside(name_of(cut_name(test))))
                    yield html_text(Document((profile_listing(profile),)), OWN_PAGE)


def _environment(run: ReportedRun) -> Html:
    rows = (
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in run.environment.items()
    )
    return scrolling(element("table", *rows, class_="facts")) if run.environment else joined(())
