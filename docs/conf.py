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
exclude_patterns = ["_build"]  # has copies of SKILL.md, which is not a source
html_static_path = ["_static"]
html_css_files = ["pages.css"]


def put_drawings_into_the_page(app: Any, doctree: Any, docname: str) -> None:
    """Inline SVG files, so that they take the colours of the page, in dark mode too."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        drawing = Path(app.srcdir, image["uri"])
        if drawing.suffix == ".svg":
            text = re.sub(r"<style>.*?</style>", "", drawing.read_text(), flags=re.DOTALL)
            box = f'<div class="drawing" tabindex="0">{text}</div>'
            image.replace_self(nodes.raw("", box, format="html"))


def copy_pages_for_agents(app: Any, error: Exception | None) -> None:
    """Copy the pages for agents to the root of the site, with links to its pages."""
    for name in ("SKILL.md", "llms.txt") if error is None else ():
        text = Path(app.srcdir).parent.joinpath(name).read_text()
        text = re.sub(r"\]\(docs/(\w+)\.md", r"](\1.html", text).replace("](docs/", "](")
        Path(app.outdir, name).write_text(text)


def setup(app: Any) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("doctree-resolved", put_drawings_into_the_page)
    app.connect("build-finished", copy_pages_for_agents)
