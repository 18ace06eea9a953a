"""Sphinx builds the pages of this folder: ``make docs``."""

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes

project = "pytest-dtdispatch"
author = "the pytest-dtdispatch developers"
version = release = version_of("pytest-dtdispatch")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "pytest-dtdispatch"
autodoc_typehints = "description"
nitpick_ignore_regex = [("py:.*", r".*")]
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_js_files = ["sortable.js"]


def put_drawings_into_the_page(app: Any, doctree: Any, docname: str) -> None:
    """Put SVG files into the page itself, whose colours they then take: in dark mode too, however chosen."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        drawing = Path(app.srcdir, image["uri"])
        if drawing.suffix == ".svg":
            text = re.sub(r"<style>.*?</style>", "", drawing.read_text(), flags=re.DOTALL)
            box = f'<div class="drawing" tabindex="0">{text}</div>'
            image.replace_self(nodes.raw("", box, format="html"))


# What pages of atlases name, and where it lies here, which the command that writes them cannot know.
OF_ATLASES = {
    "atlas": {
        "`atlas.html`": '<a href="_static/atlas.html">atlas.html</a>',
        "`dtdispatch atlas-versions`": "[`dtdispatch atlas-versions`](atlas_versions.md)",
    },
    "atlas_versions": {
        f"`atlas_versions.{form}`": f'<a href="_static/atlas_versions.{form}">atlas_versions.{form}</a>'
        for form in ("html", "json")
    },
}


def link_what_atlases_name(app: Any, docname: str, source: list[str]) -> None:
    """Make links of the names of other pages and files."""
    for name, link in OF_ATLASES.get(docname, {}).items():
        source[0] = source[0].replace(name, link, 1)


def setup(app: Any) -> None:
    """Tell Sphinx what this file adds to it."""
    app.connect("source-read", link_what_atlases_name)
    app.connect("doctree-resolved", put_drawings_into_the_page)
