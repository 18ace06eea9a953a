"""What commands print: colours only where they are seen, and no letter that an output does not have."""

from __future__ import annotations

import io

import pytest

from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.report.screen import has_colors, say, show

VARIABLES = ("PY_COLORS", "NO_COLOR", "FORCE_COLOR", "TERM")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "on_terminal", "on_pipe"),
    [
        ({}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": ""}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"PY_COLORS": "0", "FORCE_COLOR": "1"}, False, False),
        ({"PY_COLORS": "1", "NO_COLOR": "1"}, True, True),
    ],
)
def test_variables_and_the_stream_decide_on_colours(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], on_terminal: bool, on_pipe: bool
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (has_colors(Terminal()), has_colors(io.StringIO())) == (on_terminal, on_pipe)


def test_a_document_is_printed_in_its_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = Document((one_line("gate: ", Span("passed", Tone.GOOD), " \x1b[31mtest"),))
    show(document)
    assert capsys.readouterr().out == "gate: passed \\x1b[31mtest\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    show(document)
    assert capsys.readouterr().out == "gate: \x1b[32mpassed\x1b[0m \\x1b[31mtest\n"


def test_a_line_holds_no_escape_of_others_and_no_letter_that_the_stream_lacks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    say("\x1b[2Jgöne\n\u202e", stream=stream)
    assert raw.getvalue() == b"\\x1b[2Jg\\xf6ne\\n\\u202e\n"
