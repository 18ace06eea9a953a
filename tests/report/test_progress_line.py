"""The line that says what is going on: only on a terminal, only while it takes long, and gone after."""

from __future__ import annotations

import io

import pytest

from pytest_dtdispatch.core.text import NOTHING, tell, told_to
from pytest_dtdispatch.report.screen import ERASE, RESTORE, SAVE, ProgressLine, is_watched


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def line(room: int = 40) -> tuple[io.StringIO, Clock, ProgressLine]:
    stream, clock = io.StringIO(), Clock()
    return stream, clock, ProgressLine(stream, lambda: room, clock=clock)


def test_only_a_terminal_that_somebody_sees_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_watched(True)
    assert not is_watched(False)
    monkeypatch.setenv("CI", "true")
    assert not is_watched(True)
    monkeypatch.delenv("CI")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_watched(True)


def test_what_is_over_soon_is_not_spoken_of() -> None:
    stream, clock, progress = line()
    progress.tell("early")
    clock.now = 1.9
    progress.tell("still early")
    progress.clear()
    assert stream.getvalue() == ""


def test_it_is_written_beside_the_cursor_and_taken_away() -> None:
    stream, clock, progress = line()
    clock.now = 2.0
    progress.tell("round 3 of 20")
    clock.now = 2.05
    progress.tell("too soon to be read")
    clock.now = 2.2
    progress.tell("round 4 of 20")
    progress.tell(NOTHING)
    progress.clear()
    said = [f"{SAVE} round {number} of 20{ERASE}{RESTORE}" for number in (3, 4)]
    assert stream.getvalue() == "".join([*said, ERASE])
    progress.tell("the next thing waits again")
    assert stream.getvalue().endswith(RESTORE + ERASE)


@pytest.mark.parametrize("text", ["x" * 10_000, "\x1b[2J\n\u202e日本" * 9])
def test_whatever_it_says_it_stays_in_its_room(text: str) -> None:
    stream, clock, progress = line(room=30)
    clock.now = 3.0
    progress.tell(text)
    inner = stream.getvalue().removeprefix(SAVE).removesuffix(ERASE + RESTORE)
    assert len(inner) == 29
    assert inner.isascii()
    assert inner.isprintable()


def test_without_room_or_on_a_closed_stream_nothing_is_said() -> None:
    stream, clock, progress = line(room=10)
    clock.now = 3.0
    progress.tell("round 3 of 20")
    assert stream.getvalue() == ""
    stream, clock, progress = line()
    clock.now = 3.0
    stream.close()
    progress.tell("round 3 of 20")
    progress.clear()


def test_what_is_told_is_written_for_listeners_alone() -> None:
    class Never:
        def __str__(self) -> str:
            raise AssertionError

    tell("{}", Never())
    heard: list[str] = []
    with told_to(heard.append):
        tell("round {} of {}", 1, 20)
    tell("round {} of {}", 2, 20)
    assert heard == ["round 1 of 20"]
