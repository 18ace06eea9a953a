"""Sphinx builds the pages of this folder: ``make docs``."""

from importlib.metadata import version as version_of

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
html_js_files = ["sortable.js"]
