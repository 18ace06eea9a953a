"""What takes minutes is collected only where ``-m`` names it: the atlas, and what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

SLOW = {"atlas": "atlas", "test_compile.py": "compile"}  # files and folders, and the marker of each


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of the suite."""
    config.addinivalue_line("markers", "atlas: measures every op that DTensor has a rule for, in minutes")
    config.addinivalue_line("markers", "compile: compiles functions cold and warm, in minutes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is slow, unless ``-m`` names its marker."""
    marker = SLOW.get(collection_path.name) if collection_path.parent == Path(__file__).parent else None
    return True if marker and marker not in (config.getoption("markexpr") or "") else None
