"""Load pytester, by which the tests run pytest."""

from __future__ import annotations

pytest_plugins = ["pytester"]
