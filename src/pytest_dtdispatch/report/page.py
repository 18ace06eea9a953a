"""A run as one page of HTML that loads nothing, and lets no script run but its own."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import Contains, Measurement, Proof, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import COUNT_UNITS, UNITS, escape_controls, plural, short, shorten_path
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import (
    KINDS,
    Block,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import ORDER, TONES, judgement_document, verdict_counts
from pytest_dtdispatch.report.rows import by_cost, call_cost, profiles
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import run_sections

TITLE = "DTensor dispatch report"
PIECES = {"local": "local", "hit": "overhead on a hit", "miss": "extra on a miss"}  # of the bar of a row
MOST, LONGEST = 10, 72  # items of a list that are not folded, letters of a name


def require_jinja() -> Any:
    """Import jinja2, or say in one line what to install."""
    try:
        import jinja2
    except ImportError:
        raise DtDispatchError("an HTML report needs jinja2: pip install pytest-dtdispatch[report]") from None
    return jinja2


def html_page(run: ReportedRun) -> str:
    """Write a page of a run.

    Raises:
        DtDispatchError: jinja2 is not installed.
    """
    markup = require_jinja().utils.markupsafe.Markup
    style, script = _own_file("page.css"), _own_file("page.js")
    ends = [end for rows in run.calls.values() for row in rows for end in _ends(row).values()] or [1.0]
    low, high = 10.0 ** math.floor(math.log10(min(ends))), 10.0 ** math.ceil(math.log10(max(ends)))
    high = max(high, low * 1000)
    rows = dict(_page_rows(run, low, high))
    units = UNITS if run.unit.is_time else COUNT_UNITS
    page: str = _template().render(
        title=TITLE,
        about=_about(run),
        sections=[
            {**section, "blocks": [*_folded(section["blocks"])]}
            for section in _sections(run)
            if section["blocks"] or "tone" in section
        ],
        rows=rows,
        marks=Counter(mark for row in rows.values() for mark in row["marks"]),
        pieces=PIECES,
        cut=cut_name,
        fitted=_fitted,
        is_of_rows=lambda table: any(one.row in rows for of in table.groups for one in of.lines),
        lists=_lists,
        most=MOST,
        longest=LONGEST,
        scale=(short(low, units), short(high, units)),
        policy=_policy(style, script),
        style=markup(style),
        script=markup(script),
    )
    return page + "\n"


@functools.cache
def _template() -> Any:
    """Compile the template: what is written by it is escaped, and is shown letter by letter."""
    jinja2 = require_jinja()
    markup = jinja2.utils.markupsafe.Markup

    def shown(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, markup)
        return escape_controls(value) if is_text else value

    environment = jinja2.Environment(
        autoescape=True, finalize=shown, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_own_file("page.html.j2"))


def _own_file(name: str) -> str:
    return resources.files("pytest_dtdispatch.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Let nothing be loaded, and no script run but ours."""
    hashed = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashed[0]}'; script-src 'sha256-{hashed[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _about(run: ReportedRun) -> Iterator[str]:
    rows, tests = sum(1 for _ in run.rows()), sum(map(bool, run.rows_by_test().values()))
    where = f" from {run.where}" if run.where else ""
    taken = run.taken or "at an unknown time"
    measured = f"{plural(rows, 'row')} in {plural(tests, 'test')}, " if rows else ""
    yield f"{measured}taken {taken}{where}"
    cpu, torch, device, python = map(run.environment.get, ("CPU", "torch version", "device", "Python"))
    yield ", ".join(filter(None, (cpu, torch and f"torch {torch}", device, python)))


def _sections(run: ReportedRun) -> Iterator[dict[str, Any]]:
    """Yield the parts of the page: of each its title and its blocks, of a gate how it ended."""
    for gate in run.gates:
        word, tone = ("Failed", "bad") if gate.has_failed else ("Passed", "good")
        outcome = f"{word}: {plain(verdict_counts(gate.verdicts)) or 'no row was judged'}"
        title = f"Verdicts against {shorten_path(gate.where)}"
        yield {
            "title": title,
            "blocks": judgement_document(gate).blocks[1:],
            "outcome": outcome,
            "tone": tone,
        }
    yield {"title": "What costs most", "blocks": tuple(_dearest(run))}
    yield {"title": "To know first", "blocks": run.notices.blocks}
    if not run:
        yield {"title": "Signatures and calls", "blocks": (paragraph("No signature or call was measured."),)}
    for title, document in run_sections(run):
        legend = document.legend_of()
        below = (paragraph(_as_bound(legend)),) if legend else ()
        yield {"title": title, "blocks": (*document.blocks, *below)}
    yield {"title": "Profiles", "blocks": tuple(profiles(run.rows_by_test()))}


def _dearest(run: ReportedRun) -> Iterator[Block]:
    """Name the largest part of each budget, the row that costs most, and what to change."""
    results = [*run.each_result()]
    for kind, test, result in results:
        yield from KINDS[kind].largest(test, result)
    units = UNITS if run.unit.is_time else COUNT_UNITS
    tests = {id(row): test for test, rows in run.calls.items() for row in rows}
    for one in by_cost([row for rows in run.calls.values() for row in rows])[:3]:
        if cost := one.share and call_cost(one.row):
            figures = (
                f"{plural(one.row.calls, 'call')} of {short(cost, units)}, {one.share:.0%} of all rows: "
            )
            label, of = cut_name(one.row.label, LONGEST), f" of {tests[id(one.row)]}"
            yield Paragraph((Span(figures), Span(label, Tone.CODE), Span(of)), 1)
    for kind, _, result in results:
        for advised, saves in (advice.lines for advice in KINDS[kind].advice(result)):
            yield Paragraph((Span("Advice: ", Tone.STRONG), Span(f"{advised}; {saves.strip()}")), 1)


class Folded(NamedTuple):
    """Further items of a list, each with its blocks."""

    items: int
    blocks: tuple[Block, ...]


def _folded(blocks: Iterable[Block]) -> Iterator[Block | Folded]:
    """Fold a list: an item is an indented line of several pieces, with what is indented further below it."""
    items, rest = 0, list[Block]()
    for block in blocks:
        indent, pieces = (block.indent, len(block.spans)) if isinstance(block, Paragraph) else (0, 0)
        is_item = indent == 1 and pieces > 1
        items += is_item
        if items > MOST and (is_item or indent > 1):
            rest.append(block)
            continue
        if rest:
            yield Folded(items - MOST, tuple(rest))
            rest = []
        yield block
    if rest:
        yield Folded(items - MOST, tuple(rest))


def _fitted(table: Table) -> Table:
    """Remove expendable columns of a table that has too many for the page; word scatter as a bound."""
    titles = [column.title for column in table.columns]
    most_columns = 11  # beside the label, on a screen of 1,280 dots
    spared = [title for title in table.expendable if title in titles][: max(len(titles) - most_columns, 0)]
    kept = [title not in spared for title in titles]

    def fit(line: Line) -> Line:
        cells = tuple(itertools.compress(line.cells, kept))
        return replace(line, cells=cells, proof=_as_bound(line.proof))

    groups = tuple(replace(group, lines=tuple(map(fit, group.lines))) for group in table.groups)
    columns = (replace(column, title=_as_bound(column.title)) for column in table.columns)
    return replace(table, columns=tuple(itertools.compress(columns, kept)), groups=groups)


def _as_bound(text: str) -> str:
    """Word scatter, in a text without names of users, as the upper bound that it is."""
    return re.sub(r"\+-(?=[\d,]*%)", "up to +", text)


def _lists(table: Table, by_group: bool) -> Iterator[tuple[str, list[tuple[str, Line]]]]:
    """Yield the lists of a table with their titles: one, whose lines name their groups, or one a group."""
    if by_group or len(table.groups) == 1:
        yield from ((group.title, [("", line) for line in group.lines]) for group in table.groups)
    else:
        yield "", [(group.title, line) for group in table.groups for line in group.lines]


def _page_rows(
    run: ReportedRun, low: float, high: float
) -> Iterator[tuple[tuple[RowId, Contains], dict[str, Any]]]:
    """Say of each row what is not in its cells."""
    verdicts = _verdicts_by_row(run)
    units = UNITS if run.unit.is_time else COUNT_UNITS
    for test, rows in run.calls.items():
        for row in rows:
            row_id = RowId(test, row.label)
            verdict = verdicts.get(row_id)
            has_proof = row.proof_kind in (Proof.PROVED, Proof.UNPROPAGATED)
            marks = {str(verdict): verdict, "noisy": row.noisy, "unproved": not has_proof}
            ends = _ends(row)
            yield (
                (row_id, row.contains),
                {
                    "marks": [mark for mark, has_it in marks.items() if has_it],
                    "verdict": verdict,
                    "tone": TONES.get(verdict, Tone.BAD).value if verdict else "",
                    "bar": [*_bar(ends, low, high)],
                    "said": ", ".join(f"{kind} {short(end, units)}" for kind, end in ends.items()),
                    "full": row.full_label,
                },
            )


def _verdicts_by_row(run: ReportedRun) -> dict[RowId, Verdict]:
    """Return the gravest verdict of each row, whatever its state."""
    judged: dict[RowId, list[Verdict]] = {}
    for gate in run.gates:
        for one in gate.verdicts:
            judged.setdefault(one.row._replace(state=None), []).append(one.verdict)
    return {
        row: min([one for one in verdicts if one is not Verdict.PASSED] or verdicts, key=ORDER.index)
        for row, verdicts in judged.items()
    }


def _ends(row: Measurement) -> dict[str, float]:
    """Return what the pieces of the bar of a row end at, as far as they are known."""
    figures = row.figure(State.LOCAL), row.steady.figure if row.steady else None, row.figure(State.MISS)
    return {kind: end for kind, end in zip(PIECES, figures, strict=True) if end}


def _bar(ends: Mapping[str, float], low: float, high: float) -> Iterator[tuple[str, float, float]]:
    """Place each piece on the logarithmic scale, from where the one before it ends."""
    start = 0.0
    for kind, end in ends.items():
        stop = round(100 * math.log(end / low) / math.log(high / low), 2)
        if stop > start:
            yield kind, start, stop
            start = stop
