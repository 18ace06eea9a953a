"""One page of HTML that loads nothing: its head, its sections, and links to them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from pytest_dtdispatch.report.html_parts import Html, element


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        key: its anchor.
        title: its heading.
        inner: what is in it.
    """

    key: str
    title: str
    inner: Html

    def __bool__(self) -> bool:
        return bool(self.inner)


def framed(
    title: str, header: Iterable[Html], sections: Iterable[Section], script: str = "", style: str = ""
) -> str:
    """Write a page.

    Args:
        title: of the page, by which a later run knows it too.
        header: what stands above the links to its sections.
        sections: those without anything in them are left out.
        script: in place of the one that sorts and filters the rows that are in the page.
        style: of this page, beside that of all.
    """
    shown = [section for section in sections if section]
    style, script = _own_file("page.css") + style, script or _own_file("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        Html(f"<style>{style}</style>"),
    )
    links = (element("li", element("a", section.title, href=f"#{section.key}")) for section in shown)
    body = element(
        "body",
        element("a", "to the results", href="#main", class_="skip"),
        element("header", *header, element("nav", element("ul", *links), aria_label="sections")),
        element("main", *map(_written, shown), id="main"),
        Html(f"<script>{script}</script>"),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _own_file(name: str) -> str:
    return resources.files("pytest_dtdispatch.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Let nothing be loaded, and no script run but ours."""
    hashed = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashed[0]}'; script-src 'sha256-{hashed[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _written(section: Section) -> Html:
    heading = element("h2", section.title, id=f"{section.key}-title")
    return element("section", heading, section.inner, id=section.key, aria_labelledby=f"{section.key}-title")
