"""A watched script in the process of the test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.watched_scripts import Watch


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Watch:
    """Return a function that watches a script in this process, and returns its status and output."""
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches
    from pytest_dtdispatch.watch.model import Limits
    from pytest_dtdispatch.watch.script import watch_script

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(
        code: str, budget_steps: int = 0, arguments: Sequence[str] = (), **limits: Any
    ) -> tuple[int, str, str]:
        Path("train.py").write_text(code)
        ShardingCaches().clear_all()  # as in a new process
        status = watch_script("train.py", arguments, budget_steps, Limits(**limits))
        return status, *capsys.readouterr()

    return run
