"""What takes minutes is collected only where ``-m`` or ``-k`` names it: the atlas, and what is compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SLOW = {"atlas": "atlas", "test_compile.py": "compile"}  # files and folders, and the marker of each


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of the suite."""
    config.addinivalue_line("markers", "atlas: measures every op that DTensor has a rule for, in minutes")
    config.addinivalue_line("markers", "compile: compiles functions cold and warm, in minutes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is slow, unless a marker or a name selects it."""
    marker = SLOW.get(collection_path.name) if collection_path.parent == Path(__file__).parent else None
    if not marker or marker in (config.getoption("markexpr") or ""):
        return None
    return None if _is_named(collection_path, marker, config.getoption("keyword") or "") else True


def _is_named(path: Path, marker: str, expression: str) -> bool:
    """Tell whether a name in ``-k``, one not negated, is the marker or begins as a test's name does."""
    files = path.glob("test_*.py") if path.is_dir() else [path]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    names = (marker, *re.findall(r"def test_(\w+)", source))
    wanted = re.sub(r"\bnot\s+(\([^)]*\)|[^\s()]+)", "", expression.lower())
    words = (word.partition("[")[0].removeprefix("test_") for word in re.findall(r"[^\s()]+", wanted))
    return any(word and name.startswith(word) for word in words for name in names)
