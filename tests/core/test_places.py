"""Text of places in a user's program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_dtdispatch.core.events import CodePlace, Phase


def test_file_path_is_relative_below_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    below = CodePlace(str(tmp_path / "here" / "models" / "llama.py"), 12, "layers.0", Phase.FORWARD)
    assert str(below) == f"models{os.sep}llama.py:12 in layers.0 (forward)"
    other = CodePlace(str(tmp_path / "train.py"), 3, "", Phase.OPTIMIZER)
    assert str(other) == f"{tmp_path / 'train.py'}:3 (optimizer)"
    assert str(CodePlace(phase=Phase.BACKWARD)) == "nowhere in the program (backward)"


def test_removed_current_directory_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert str(CodePlace("/a/train.py", 3, "", Phase.OTHER)) == "/a/train.py:3 (other)"
