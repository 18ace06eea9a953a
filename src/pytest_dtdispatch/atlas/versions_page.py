"""Every signature on every version in one page of HTML, to search, sort and filter."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from pytest_dtdispatch.atlas.changes import AtlasComparison, ChangeKind
from pytest_dtdispatch.atlas.changes_page import definitions_of_changes, places
from pytest_dtdispatch.atlas.op_kinds import kind_of
from pytest_dtdispatch.core.forms import ATLASES_TITLE
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.html_frame import Section, framed
from pytest_dtdispatch.report.html_parts import Html, element, joined
from pytest_dtdispatch.report.html_text import OWN_PAGE, html_text

# What a cell shows, by the key that the script knows it by.
SHOWN = {
    "times": "miss ms, hit us",
    "miss": "miss ms",
    "hit": "hit us",
    "propagations": "propagations a miss",
}
# What is looked for on any version, by the key that the script knows it by.
ANYWHERE = {
    "moves": "redistributes silently",
    "no_hit": "never hits",
    "unsupported": "torch does not support it",
    "no_rule": "has no rule",
}


def versions_page(compared: AtlasComparison, data: str, data_name: str) -> str:
    """Write the page: the data are in it, and its script draws the rows that are looked at.

    Args:
        compared: every row of every version.
        data: the same as JSON.
        data_name: name of the file that has it beside the page.
    """
    versions = compared.versions
    ops = len({row.op for row in compared.rows})
    header = (
        element("h1", ATLASES_TITLE),
        element(
            "p",
            f"{len(compared.rows):,} signatures of {ops:,} ops, from torch {versions[0].heading} to "
            f"{versions[-1].heading}. The same as data: ",
            element("a", data_name, href=data_name),
            ".",
            class_="about",
        ),
        element("noscript", element("p", "The rows are drawn by a script, and scripts are off here.")),
    )
    inner = joined((_controls(compared), _table(), _block(data)))
    words = html_text(Document(definitions_of_changes()), OWN_PAGE)
    where = html_text(Document((places(versions),)), OWN_PAGE)
    sections = (
        Section("signatures", "Every signature, version by version", inner),
        Section("words", "What is called a change", words),
        Section("where", "Where these figures were taken", where),
    )
    return framed(
        ATLASES_TITLE, header, sections, _own_file("versions_page.js"), _own_file("versions_page.css")
    )


def _own_file(name: str) -> str:
    return resources.files("pytest_dtdispatch.atlas").joinpath(name).read_text(encoding="utf-8")


def _block(data: str) -> Html:
    """Put data into the page: nothing in it can end the element, and no browser runs it."""
    escaped = data.replace("<", "\\u003c").replace(">", "\\u003e")
    return Html(f'<script type="application/json" id="data">{escaped}</script>')


def _controls(compared: AtlasComparison) -> Html:
    kinds = sorted({kind_of(row.op) for row in compared.rows})
    meshes = sorted({row.mesh for row in compared.rows if row.mesh}, key=lambda mesh: (mesh.count("x"), mesh))
    there = {change.kind for both in compared.neighbours for change in both.changes}
    pairs = [
        (str(both.place), f"{both.before.heading} to {both.after.heading}") for both in compared.neighbours
    ]
    search = element("input", type="search", name="text", autocomplete="off", placeholder="add.Tensor S0")
    return element(
        "form",
        element("label", "words in it", search),
        _choice("kind", "kind of op", "all", ((kind, kind) for kind in kinds)),
        _choice("mesh", "mesh", "all", ((mesh, mesh) for mesh in meshes)),
        _choice("anywhere", "on any version", "-", ANYWHERE.items()),
        _choice("change", "what changed", "-", ((kind, kind) for kind in ChangeKind if kind in there)),
        _choice("pair", "changed from, to", "any", pairs),
        element(
            "label",
            "shown",
            element(
                "select", *(element("option", text, value=key) for key, text in SHOWN.items()), name="figures"
            ),
        ),
        element("button", "all rows", type="reset"),
        element("output", id="shown", aria_live="polite"),
        id="controls",
        class_="controls",
    )


def _choice(name: str, title: str, every: str, values: Iterable[tuple[str, str]]) -> Html:
    options = (element("option", str(text), value=str(value)) for value, text in values)
    # An empty value must stand in the markup: without it a browser takes the text of the option.
    chosen = Html(f'<option value="" selected>{every}</option>')
    return element("label", title, element("select", chosen, *options, name=name))


def _table() -> Html:
    table = element("table", element("thead"), element("tbody"), id="versions")
    more = element("button", "more rows", type="button", id="more", hidden=True)
    return joined((element("div", table, class_="scroll", tabindex="0"), element("p", more)))
