"""Load pytester, which runs pytest inside tests."""

from __future__ import annotations

pytest_plugins = ["pytester"]
