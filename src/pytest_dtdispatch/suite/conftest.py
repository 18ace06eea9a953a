"""Collect slow tests of the suite, the atlas and compiled functions, only if ``-m`` names their markers."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of the suite."""
    config.addinivalue_line("markers", "atlas: measures every op that DTensor has a rule for, in minutes")
    config.addinivalue_line("markers", "compile: compiles functions cold and warm, in minutes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore slow files and folders, unless ``-m`` names their marker."""
    if collection_path.parent != Path(__file__).parent:
        return None
    marker = {"atlas": "atlas", "test_compile.py": "compile"}.get(collection_path.name)
    if marker is None or marker in (config.getoption("markexpr") or ""):
        return None
    return True
