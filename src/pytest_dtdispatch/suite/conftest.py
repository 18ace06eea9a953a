"""The atlas takes minutes: it is collected only where ``-m`` names it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the suite."""
    config.addinivalue_line("markers", "atlas: measures every op that DTensor has a rule for, in minutes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the atlas out, unless the marker expression names it."""
    is_atlas = collection_path.name == "atlas" and collection_path.parent == Path(__file__).parent
    return True if is_atlas and "atlas" not in (config.getoption("markexpr") or "") else None
