"""The three files of an atlas: a short page, one with every row, and the data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pytest_dtdispatch.core.files import checked_target


class Outputs(NamedTuple):
    """Files that differ in their suffix alone.

    Example:
        >>> str(outputs_of(Path("atlas.md")))
        'atlas.md, atlas.html, atlas.json'
    """

    page: Path
    whole: Path
    data: Path

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def outputs_of(given: Path) -> Outputs:
    """Name the files: the page as it is given, unless that is the name of another of them."""
    whole, data = given.with_suffix(".html"), given.with_suffix(".json")
    return Outputs(given.with_suffix(".md") if given in (whole, data) else given, whole, data)


def checked_outputs(given: Path, page: str, whole: str, data: str) -> Outputs:
    """Name the files, and check that each can be written and holds nothing but an earlier one of its form."""
    outputs = outputs_of(given)
    for path, form in zip(outputs, (page, whole, data), strict=True):
        checked_target(path, form)
    return outputs
