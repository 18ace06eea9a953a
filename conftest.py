"""Make the examples of the docstrings tests of their own."""

from __future__ import annotations

pytest_plugins = ["pytester"]
