"""What is shown of texts and values that others made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.text import escape_controls, shown


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("add.Tensor(f32[8]S0)@4", "add.Tensor(f32[8]S0)@4"),
        ("für Löwen", "für Löwen"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("no UTF-8: \udcff", r"no UTF-8: \udcff"),
    ],
)
def test_what_moves_a_cursor_or_turns_a_line_round_is_written_by_its_number(text: str, written: str) -> None:
    assert escape_controls(text) == written


@given(some.text())
def test_every_text_can_be_printed_in_one_line(text: str) -> None:
    assert escape_controls(text).isprintable()
    assert escape_controls(escape_controls(text)) == escape_controls(text)


class Silent:
    """An object that cannot show itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Wide:
    """An object that shows itself in two lines."""

    def __repr__(self) -> str:
        return "one\n  two\x1b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "'x'"),
        (5, "5"),
        (Silent(), "<Silent that cannot be shown>"),
        ([Silent()], "<list that cannot be shown>"),
        (Wide(), r"one two\x1b"),
        ("9" * 5000, f"'{'9' * 116}..."),
    ],
)
def test_a_value_is_shown_in_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text
