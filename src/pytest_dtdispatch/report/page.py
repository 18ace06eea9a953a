"""A run as one HTML page. It loads no other resources, and its policy permits only its own script."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

from pytest_dtdispatch.core.measurement import Contains, Measurement, Proof, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import COUNT_UNITS, UNITS, escape_controls, short, shorten_path
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Line,
    Paragraph,
    Table,
    Tone,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.history import history_sections
from pytest_dtdispatch.report.judgements import TONES, badness, judgement_document, verdict_counts
from pytest_dtdispatch.report.rows import profiles
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import about_run, advice_blocks, run_sections, worst_of

TITLE = "DTensor dispatch report"
PIECES = {"local": "local", "hit": "rest of a hit", "miss": "miss"}  # of the bar of a row
MAX_ITEMS = 10  # unfolded items of a list


def require_jinja() -> Any:
    """Import jinja2.

    Raises:
        DtDispatchError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise DtDispatchError("an HTML report needs jinja2: pip install pytest-dtdispatch[report]") from None
    return jinja2


def html_page(run: ReportedRun) -> str:
    """Render a run as an HTML page.

    Raises:
        DtDispatchError: jinja2 is not installed.
    """
    markup = require_jinja().utils.markupsafe.Markup
    style, script = _own_file("page.css"), _own_file("page.js")
    # Content security policy: only this style and this script, and no other resources.
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    units = UNITS if run.unit.is_time else COUNT_UNITS
    figures = [_figures(row) for of_test in run.calls.values() for row in of_test]
    longest_hit = max((max(each.get("local", 0.0), each.get("hit", 0.0)) for each in figures), default=0.0)
    longest_miss = max((each.get("miss", 0.0) for each in figures), default=0.0)
    longest = {"hit": longest_hit, "miss": longest_miss}
    rows = _page_rows(run, longest)
    page: str = _template().render(
        about=about_run(run),
        sections=[section for section in _sections(run) if section["blocks"] or "tone" in section],
        rows=rows,
        marks=Counter(mark for row in rows.values() for mark in row["marks"]),
        scales=[f"{piece} up to {short(end, units)}" for piece, end in longest.items() if end],
        policy=policy,
        style=markup(style),
        script=markup(script),
    )
    return page + "\n"


@functools.cache
def _template() -> Any:
    """Compile the template; markup and control characters of all values are escaped."""
    jinja2 = require_jinja()
    markup = jinja2.utils.markupsafe.Markup

    def shown(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, markup)
        return escape_controls(value) if is_text else value

    environment = jinja2.Environment(
        autoescape=True, finalize=shown, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(
        title=TITLE,
        pieces=PIECES,
        most=MAX_ITEMS,
        cut=cut_name,
        columns_of=_columns,
        as_bound=_as_bound,
        lists=_lists,
    )
    return environment.from_string(_own_file("page.html.j2"))


def _own_file(name: str) -> str:
    return resources.files("pytest_dtdispatch.report").joinpath(name).read_text(encoding="utf-8")


def _sections(run: ReportedRun) -> Iterator[dict[str, Any]]:
    """Yield sections of the page, with title and blocks; those of gates also have an outcome and a tone."""
    for title, document in history_sections(run.history).items():
        yield _section(title, document.blocks)
    for gate in run.gates:
        word, tone = ("Failed", "bad") if gate.has_failed else ("Passed", "good")
        outcome = f"{word}: {plain(verdict_counts(gate.verdicts)) or 'no row was judged'}"
        title = f"Verdicts against {shorten_path(gate.where)}"
        yield {**_section(title, judgement_document(gate).blocks[1:]), "outcome": outcome, "tone": tone}
    sections = [*run_sections(run)]
    worst = worst_of(run, [document for _, document in sections])
    yield _section("Worst", [paragraph(worst)] if worst else [])
    yield _section("Advice", advice_blocks(run))
    yield _section("Notices", run.notices.blocks)
    if not run:
        yield _section("Signatures and calls", [paragraph("No signature or call was measured.")])
    for title, document in sections:
        legend = document.legend_of()
        below = (paragraph(_as_bound(legend)),) if legend else ()
        yield _section(title, (*document.blocks, *below))
    yield _section("Profiles", profiles(run.rows_by_test()))


def _section(title: str, blocks: Iterable[Block]) -> dict[str, Any]:
    """Return a section with long lists collapsed; if a table has a total, a wide screen has two columns."""
    shown: list[Block | list[Block]] = []  # a list is collapsed
    items, is_collapsed = 0, False
    for block in blocks:
        # An item is an indented line of several spans, with the deeper lines below it.
        indent, pieces = (block.indent, len(block.spans)) if isinstance(block, Paragraph) else (0, 0)
        if indent <= 1:
            is_item = indent == 1 and pieces > 1
            items += is_item
            is_collapsed = is_item and items > MAX_ITEMS
        if not is_collapsed:
            shown.append(block)
        elif isinstance(shown[-1], list):
            shown[-1].append(block)
        else:
            shown.append([block])
    has_columns = any(getattr(block, "has_total", False) for block in shown)
    return {"title": title, "blocks": shown, "has_columns": has_columns}


def _columns(table: Table) -> list[Column]:
    """Return the columns of a table, without optional ones if it is too wide for the page."""
    max_columns = 11  # next to the label, on a screen of 1,280 pixels
    titles = [column.title for column in table.columns]
    excess = max(len(titles) - max_columns, 0)
    omitted = [title for title in table.optional if title in titles][:excess]
    return [column for column in table.columns if column.title not in omitted]


def _as_bound(text: str) -> str:
    """Write scatter as the upper bound that it is, in a text without user-provided names."""
    return re.sub(r"\+-(?=[\d,]*%)", "up to +", text)


def _lists(table: Table, by_group: bool) -> Iterator[tuple[str, list[tuple[str, Line]]]]:
    """Yield titles and lines of the lists of a table: one list per group, or one whose lines name groups."""
    if by_group or len(table.groups) == 1:
        for group in table.groups:
            yield group.title, [("", line) for line in group.lines]
    else:
        yield "", [(group.title, line) for group in table.groups for line in group.lines]


def _page_rows(
    run: ReportedRun, longest: Mapping[str, float]
) -> dict[tuple[RowId, Contains], dict[str, Any]]:
    """Return the properties of each row that no cell has, by identity and scope: marks, verdict and bar."""
    worst: dict[RowId, RowVerdict] = {}  # over all states of the row
    for gate in run.gates:
        for judged in gate.verdicts:
            row_id = judged.row._replace(state=None)
            worst[row_id] = min(worst.get(row_id, judged), judged, key=badness)
    found = {}
    units = UNITS if run.unit.is_time else COUNT_UNITS
    for test, rows in run.calls.items():
        for row in rows:
            row_id = RowId(test, row.label)
            verdict = worst[row_id].verdict if row_id in worst else None
            has_proof = row.proof_kind in (Proof.PROVED, Proof.UNPROPAGATED)
            marks = {str(verdict): verdict, "noisy": row.noisy, "unproved": not has_proof}
            figures = _figures(row)
            found[row_id, row.contains] = {
                "marks": [mark for mark, has_it in marks.items() if has_it],
                "verdict": verdict,
                "tone": TONES.get(verdict, Tone.BAD).value if verdict else "",
                "bar": [*_bar(figures, longest)],
                "bar_text": ", ".join(f"{piece} {short(end, units)}" for piece, end in figures.items()),
                "full": row.full_label,
            }
    return found


def _figures(row: Measurement) -> dict[str, float]:
    """Return the known figures of a row that its bar shows."""
    figures = row.figure(State.LOCAL), row.steady.figure if row.steady else None, row.figure(State.MISS)
    return {piece: figure for piece, figure in zip(PIECES, figures, strict=True) if figure}


def _bar(figures: Mapping[str, float], longest: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and width of each piece, in percent of the longest hit, or of the longest miss."""
    start = 0.0
    for piece in ("local", "hit"):
        end = 100 * figures.get(piece, 0.0) / (longest["hit"] or 1.0)
        if end > start:
            yield piece, start, end - start
            start = end
    if "miss" in figures:
        yield "miss", 0.0, 100 * figures["miss"] / longest["miss"]
