"""The course of every row over several saved runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.report.course_chart import course_chart
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

STATES = (State.HIT, State.CALL, State.MISS, State.COMPILE_COLD, State.COMPILE_WARM)
DIFFERS = "not the same machine, torch or settings as the newest: its figures may not compare"
# What may differ between runs that compare.
HARMLESS = {"pytest-dtdispatch", "commit"}


@dataclass(frozen=True)
class Course:
    """One row in one state, in every run.

    Args:
        test: of the row.
        label: of the row.
        state: of the samples.
        points: of each run, the oldest first; None where it does not have the row.
    """

    test: str
    label: str
    state: State
    points: tuple[Samples | None, ...]

    @property
    def known(self) -> list[Samples]:
        """What runs have of it."""
        return [point for point in self.points if point is not None]

    @property
    def change(self) -> float | None:
        """How much the last figure is above the first, as a share; None where there is one figure alone."""
        first, last = self.known[0].figure, self.known[-1].figure
        return last / first - 1 if len(self.known) > 1 and first else None


def courses_of(runs: Sequence[ReportedRun]) -> Iterator[Course]:
    """Follow every row over runs, the oldest first."""
    found: dict[tuple[str, str, State], list[Samples | None]] = {}
    for n, run in enumerate(runs):
        for test, rows in run.measured.items():
            for row in rows:
                for samples in row.recorded():
                    if samples.state in STATES:
                        points = found.setdefault((test, row.label, samples.state), [None] * len(runs))
                        points[n] = samples
    for (test, label, state), points in found.items():
        yield Course(test, label, state, tuple(points))


def course_section(runs: Sequence[ReportedRun], text: Callable[[float], str]) -> Html:
    """List the runs, the oldest first, and draw the course of each row."""
    return joined((_runs_table(runs), _courses_table(list(courses_of(runs)), len(runs), text)))


def _runs_table(runs: Sequence[ReportedRun]) -> Html:
    newest = _comparable(runs[-1])
    rows = []
    for n, run in enumerate(runs, start=1):
        differ = [name for name, value in _comparable(run).items() if newest.get(name) != value]
        said = element("span", f"{DIFFERS}: {', '.join(differ)}", class_="notice") if differ else ""
        cells = (
            element("td", str(n)),
            element("td", run.taken),
            element("td", name_of(run.where), class_="l"),
        )
        rows.append(element("tr", *cells, element("td", said, class_="l")))
    titles = ("run", "taken", "file", "note")
    head = element("thead", element("tr", *(element("th", title, scope="col") for title in titles)))
    caption = element("caption", "The runs, the oldest first; all else on this page is of the last.")
    return scrolling(element("table", caption, head, element("tbody", *rows)))


def _comparable(run: ReportedRun) -> dict[str, str]:
    return {name: value for name, value in run.environment.items() if name not in HARMLESS}


def _courses_table(courses: Sequence[Course], runs: int, text: Callable[[float], str]) -> Html:
    caption = element(
        "caption", "Points are figures, the line above each its noise; every chart begins at 0."
    )
    titles = (("signature", "ascending"), ("state", "ascending"), ("runs", ""), ("first", ""), ("last", ""))
    heads = [sorting_head(title, first) for title, first in (*titles, ("change", ""))]
    head = element("thead", element("tr", *heads, element("th", "course", scope="col")))
    body = (_course_row(course, runs, text) for course in courses)
    table = element("table", caption, head, *body, class_="sortable courses")
    return scrolling(table)


def _course_row(course: Course, runs: int, text: Callable[[float], str]) -> Html:
    first, last = course.known[0].figure, course.known[-1].figure
    is_gone = course.points[-1] is None
    gone = beside("not in the last run", tone="notice") if is_gone else ""
    test = below_label(course.test)
    label = element("th", name_of(cut_name(course.label)), test, gone, scope="row", class_="l")
    figures = (
        element("td", f"{len(course.known)} of {runs}", class_="r", data_key=len(course.known)),
        element("td", text(first), class_="r", data_key=f"{first:.6g}"),
        element("td", text(last), class_="r", data_key=f"{last:.6g}"),
        _change(course),
    )
    chart = element("td", course_chart(course.points, text))
    return element("tbody", element("tr", label, element("td", str(course.state)), *figures, chart))


def _change(course: Course) -> Html:
    """Write how the figure changed, and whether one of both ends is noise."""
    change = course.change
    if change is None:
        return element("td", "-", class_="r", data_key="-")
    is_noisy = any(samples.is_noisy for samples in (course.known[0], course.known[-1]))
    noisy = [beside("noisy", tone="notice")] * is_noisy
    kind = "r noisy" if is_noisy else "r"
    return element("td", f"{change:+.1%}", *noisy, class_=kind, data_key=f"{change:.6g}")
