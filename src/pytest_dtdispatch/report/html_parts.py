"""Pieces of a page, made so that no text of others becomes markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import cut_name


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


VOID = {"meta", "link", "input", "br", "wbr"}
JOINT = "::"
LONGEST_TEST = 200  # letters


def element(name: str, /, *inner: str, **attributes: str | float | bool) -> Html:
    """Make an element; what is inside is escaped, unless it is markup.

    Args:
        name: of its tag.
        inner: texts and elements.
        attributes: with ``_`` for ``-``, and one more at the end of a Python keyword; left out where empty.

    Example:
        >>> element("b", "a < b", class_="wide")
        '<b class="wide">a &lt; b</b>'
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(str(value))}"')
        for key, value in attributes.items()
        if value is not False and value != ""
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(inner)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Put texts and elements one behind the other."""
    return Html("".join(part if isinstance(part, Html) else _escaped(part) for part in parts))


def sorting_head(title: str, first: str = "", **attributes: str) -> Html:
    """Write the head of a column that sorts its table, at the first press in this order."""
    button = element("button", title, type="button")
    return element("th", button, scope="col", data_first=first, **attributes)


def scrolling(table: Html) -> Html:
    """Let a table that is wider than the screen scroll alone; by keyboard too, so it can be reached."""
    return element("div", table, class_="scroll", tabindex="0")


def beside(*inner: str, tone: str = "") -> Html:
    """Write what stands small below a name or a figure."""
    return element("span", *inner, class_=f"test {tone}".strip())


def below_label(test: str, *more: str) -> Html:
    """Write the test that a row is of, as it stands below the row's label."""
    return beside(name_of(cut_name(test, LONGEST_TEST)), *more)


def name_of(text: str, **attributes: str) -> Html:
    """Write a name that others gave: letters that run from right to left turn nothing around it.

    A line may end between the parts of a node id, before it ends inside of one.
    """
    first, *others = text.split(JOINT)
    parts = (part for other in others for part in (JOINT, element("wbr"), other))
    return element("bdi", first, *parts, **attributes)


def _escaped(text: str) -> str:
    return html.escape(printable(text))
