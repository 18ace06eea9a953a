"""Every signature of the atlas in one page of HTML, to sort and to filter."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow, Outcome, count_ops
from pytest_dtdispatch.atlas.op_kinds import kind_of
from pytest_dtdispatch.atlas.row_texts import (
    SHOWN_TIMES,
    by_miss,
    definitions,
    moves_of,
    note_of,
    ns_of,
    where_taken,
)
from pytest_dtdispatch.core.forms import ATLAS_TITLE
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.html_frame import Section, framed
from pytest_dtdispatch.report.html_parts import Html, element, joined, name_of, scrolling
from pytest_dtdispatch.report.html_text import OWN_PAGE, html_text
from pytest_dtdispatch.report.measurements import SCALES


class Find(NamedTuple):
    """What a reader looks for: how it is called in the address of a row, and to the reader."""

    key: str
    title: str


REDISTRIBUTES = Find("redistributes", "redistributes silently")
NEVER_HITS = Find("never-hits", "never hits")
UNSUPPORTED = Find("unsupported", "torch does not support it")
UNMEASURED = Find("unmeasured", "not measured")
UNCONFIRMED = Find("unconfirmed", "no second visit agreed")
FINDS = (REDISTRIBUTES, NEVER_HITS, UNSUPPORTED, UNMEASURED, UNCONFIRMED)


def whole_page(atlas: Atlas) -> str:
    """Write all rows, the dearest miss first."""
    measured = atlas.of(Outcome.MEASURED)
    header = (
        element("h1", ATLAS_TITLE),
        element(
            "p",
            f"{len(atlas.rows):,} signatures of {atlas.ops:,} ops, {len(measured):,} of them measured. "
            f"{atlas.date}, torch {atlas.environment.torch_version}, {atlas.cpu}.",
            class_="about",
        ),
    )
    sections = (
        Section("signatures", "Every signature", joined((_controls(atlas.rows), scrolling(_table(atlas))))),
        Section("words", "What the columns are", html_text(Document((definitions(),)), OWN_PAGE)),
        Section("where", "Where these figures were taken", html_text(Document(where_taken(atlas)), OWN_PAGE)),
    )
    return framed(ATLAS_TITLE, header, sections)


def finds_of(row: AtlasRow) -> Iterator[Find]:
    """Name what a row is found by."""
    if row.moves:
        yield REDISTRIBUTES
    if row.why_no_hit:
        yield NEVER_HITS
    if row.unconfirmed:
        yield UNCONFIRMED
    if row.outcome is Outcome.UNSUPPORTED:
        yield UNSUPPORTED
    elif not row.measurement:
        yield UNMEASURED


def _controls(rows: Sequence[AtlasRow]) -> Html:
    kinds = sorted({kind_of(row.op) for row in rows})
    meshes = sorted({row.mesh for row in rows if row.mesh}, key=lambda mesh: (mesh.count("x"), mesh))
    known = set(itertools.chain.from_iterable(map(finds_of, rows)))
    counted = [
        (find.key, f"{find.title} ({count_ops(row for row in rows if find in finds_of(row)):,} ops)")
        for find in FINDS
        if find in known
    ]
    search = element("input", type="search", name="text", autocomplete="off", placeholder="add.Tensor S0")
    return element(
        "form",
        element("label", "words in it", search),
        _choice("op", "kind of op", "all", [(kind, kind) for kind in kinds]),
        _choice("marks", "only what", "all", counted),
        _choice("states", "mesh", "all", [(mesh, mesh) for mesh in meshes], name="state"),
        element("button", "all rows", type="reset"),
        element("output", id="shown", aria_live="polite"),
        id="controls",
        class_="controls",
    )


def _choice(key: str, title: str, every: str, values: Iterable[tuple[str, str]], name: str = "") -> Html:
    options = (element("option", text, value=value) for value, text in values)
    # An empty value must stand in the markup: without it a browser takes the text of the option.
    chosen = Html(f'<option value="" selected>{every}</option>')
    return element("label", title, element("select", chosen, *options, name=name or key))


def _table(atlas: Atlas) -> Html:
    titles = ["signature", *(f"{title} {SCALES[title].name}" for title in SHOWN_TIMES)]
    heads = [_head(title, is_text=place == 0) for place, title in enumerate(titles)]
    heads += [_head("redistributes", is_text=True), _head("note", is_text=True)]
    body = map(_row, by_miss(atlas.rows))
    head = element("thead", element("tr", *heads))
    return element("table", head, *body, id="rows", class_="sortable")


def _head(title: str, *, is_text: bool) -> Html:
    first = "ascending" if is_text else ""
    kind = "l" if is_text else "r"
    return element("th", element("button", title, type="button"), scope="col", class_=kind, data_first=first)


def _row(row: AtlasRow) -> Html:
    times = (SCALES[title].text(ns_of(row, title)) for title in SHOWN_TIMES)
    cells = [element("td", name_of(row.signature), class_="l")]
    cells += [element("td", text, class_="r") for text in times]
    moved = html_moves(row)
    said = "; ".join(filter(None, (note_of(row), row.message or row.why_no_hit)))
    cells += [element("td", moved, class_="l"), element("td", said, class_="l")]
    return element(
        "tbody",
        element("tr", *cells),
        data_op=kind_of(row.op),
        data_states=row.mesh,
        data_marks=" ".join(find.key for find in finds_of(row)),
    )


def html_moves(row: AtlasRow) -> str:
    """Write what a row redistributes; nothing where it does not."""
    moved = moves_of(row)
    return "" if isinstance(moved, str) else "".join(span.text for span in moved)
