"""Output of commands: colors only on terminals, and a progress line for slow operations."""

from __future__ import annotations

import io

import pytest

from pytest_dtdispatch.core.text import progress_to, show_progress
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.report.screen import (
    ERASE,
    RESTORE,
    SAVE,
    ProgressLine,
    has_colors,
    is_watched,
    say,
    show,
)

VARIABLES = ("PY_COLORS", "NO_COLOR", "FORCE_COLOR", "TERM", "CI")


class Terminal(io.StringIO):
    """A stream that reports being a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "on_terminal", "on_pipe", "watched"),
    [
        ({}, True, False, True),
        ({"TERM": "dumb"}, False, False, False),
        ({"CI": "true"}, True, False, False),
        ({"NO_COLOR": "1"}, False, False, True),
        ({"NO_COLOR": ""}, True, False, True),
        ({"FORCE_COLOR": "1"}, True, True, True),
        ({"FORCE_COLOR": ""}, True, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False, True),
        ({"PY_COLORS": "0", "FORCE_COLOR": "1"}, False, False, True),
        ({"PY_COLORS": "1", "NO_COLOR": "1"}, True, True, True),
    ],
)
def test_environment_and_stream_control_colors_and_progress(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    on_terminal: bool,
    on_pipe: bool,
    watched: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (has_colors(Terminal()), has_colors(io.StringIO())) == (on_terminal, on_pipe)
    assert (is_watched(True), is_watched(False)) == (watched, False)


def test_document_has_colors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document = Document((one_line("gate: ", Span("passed", Tone.GOOD), " \x1b[31mtest"),))
    show(document)
    assert capsys.readouterr().out == "gate: passed \\x1b[31mtest\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    show(document)
    assert capsys.readouterr().out == "gate: \x1b[32mpassed\x1b[0m \\x1b[31mtest\n"


def test_escapes_and_unencodable_letters_are_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    say("\x1b[2Jgöne\n\u202e", stream=stream)
    assert raw.getvalue() == b"\\x1b[2Jg\\xf6ne\\n\\u202e\n"


# The progress line


def line(room: int = 40, now: float = 0.0) -> tuple[io.StringIO, list[float], ProgressLine]:
    """Create a progress line with a clock that returns 0 at first, and then the last of these times."""
    stream, times = io.StringIO(), [0.0]
    progress = ProgressLine(stream, lambda: room, clock=lambda: times[-1])
    times.append(now)
    return stream, times, progress


def test_slow_progress_is_written_and_erased() -> None:
    stream, times, progress = line()
    for now, text in (
        (0.0, "early"),
        (1.9, "still early"),
        (2.0, "round 3 of 20"),
        (2.05, "too soon to be read"),
        (2.2, "round 4 of 20"),
        (2.2, ""),
    ):
        times.append(now)
        progress.show(text)
    progress.clear()
    output = [f"{SAVE} round {number} of 20{ERASE}{RESTORE}" for number in (3, 4)]
    assert stream.getvalue() == "".join([*output, ERASE])
    progress.show("the next thing waits again")
    assert stream.getvalue().endswith(RESTORE + ERASE)


def test_progress_without_a_delay_is_written_at_once() -> None:
    stream = io.StringIO()
    progress = ProgressLine(stream, lambda: 40, clock=lambda: 0.0, delay_s=0.0)
    progress.show("running 1 test again")
    assert stream.getvalue() == f"{SAVE} running 1 test again{ERASE}{RESTORE}"


def test_empty_message_without_a_delay_writes_nothing() -> None:
    """It was written as a message, which also suppressed the next one for 0.1 s."""
    stream = io.StringIO()
    progress = ProgressLine(stream, lambda: 40, clock=lambda: 0.0, delay_s=0.0)
    progress.show("")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("text", ["x" * 10_000, "\x1b[2J\n\u202e日本" * 9])
def test_progress_never_exceeds_its_width(text: str) -> None:
    stream, _, progress = line(room=30, now=3.0)
    progress.show(text)
    inner = stream.getvalue().removeprefix(SAVE).removesuffix(ERASE + RESTORE)
    assert len(inner) == 29
    assert inner.isascii()
    assert inner.isprintable()


def test_progress_without_room_or_stream_is_silent() -> None:
    stream, _, progress = line(room=10, now=3.0)
    progress.show("round 3 of 20")
    assert stream.getvalue() == ""
    stream, _, progress = line(now=3.0)
    stream.close()
    progress.show("round 3 of 20")
    progress.clear()


def test_progress_is_formatted_only_for_listeners() -> None:
    class Never:
        def __str__(self) -> str:
            raise AssertionError

    show_progress("{}", Never())
    heard: list[str] = []
    with progress_to(heard.append):
        show_progress("round {} of {}", 1, 20)
    show_progress("round {} of {}", 2, 20)
    assert heard == ["round 1 of 20"]
