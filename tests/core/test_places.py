"""Places in a user's program, as they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_dtdispatch.core.events import CodePlace, Phase


def test_a_file_below_the_current_directory_is_written_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = CodePlace(str(tmp_path / "models" / "llama.py"), 12, "layers.0", Phase.FORWARD)
    assert str(place) == f"models{os.sep}llama.py:12 in layers.0 (forward)"


def test_any_other_file_is_written_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = CodePlace(str(tmp_path / "train.py"), 3, "", Phase.OPTIMIZER)
    assert str(place) == f"{tmp_path / 'train.py'}:3 (optimizer)"


def test_a_place_without_a_line_of_the_program_says_so() -> None:
    assert str(CodePlace(phase=Phase.BACKWARD)) == "nowhere in the program (backward)"


def test_a_directory_that_is_gone_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert str(CodePlace("/a/train.py", 3, "", Phase.OTHER)) == "/a/train.py:3 (other)"
