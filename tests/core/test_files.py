"""Files are written whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.core.files import checked_target, read_text, write_whole
from pytest_dtdispatch.errors import DtDispatchError


def test_a_file_is_written_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    checked_target(path)
    write_whole(path, "née\n")
    write_whole(path, "three\n")
    assert path.read_text(encoding="utf-8") == "three\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/page.md", "there is no folder"),
        ("", "is a folder: name a file"),
        ("/proc/page.md", "its folder cannot be written to"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_in_one_line(
    tmp_path: Path, name: str, says: str
) -> None:
    with pytest.raises(DtDispatchError, match=says) as raised:
        checked_target(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_a_read_only_file_is_refused_as_root_too(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("kept", encoding="utf-8")
    path.chmod(0o444)
    with pytest.raises(DtDispatchError, match=r"page\.md is read-only$"):
        checked_target(path)


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("née", encoding="utf-8")
    assert read_text(path, 4, "too large") == "née"
    with pytest.raises(ValueError, match=r"^too large$"):
        read_text(path, 3, "too large")


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    path.write_text("kept", encoding="utf-8")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DtDispatchError, match=r"page\.md cannot be written: No space left on device"):
        write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "kept"
    assert list(tmp_path.iterdir()) == [path]
