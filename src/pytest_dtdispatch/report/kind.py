"""What a kind of result is: what is judged of it, and what is shown and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Judge = Callable[[Any, Mapping[str, Any]], str]


def no_complaint(result: Any, limits: Mapping[str, Any]) -> str:
    """Stand in for the judge of a kind that has no limits."""
    return ""


@dataclass(frozen=True)
class Kind:
    """A kind of result, as it is registered.

    Args:
        name: as its results have it.
        metrics: names of the numbers that its results have beside rows.
        complaint: says what the limits of a test have against a result; empty where nothing.
        limits: settings that limit it.
        nothing: what is said where a limit judged nothing.
        number: says how many there are, in a report of one line.
    """

    name: str
    metrics: tuple[str, ...] = ()
    complaint: Judge = no_complaint
    limits: tuple[str, ...] = ()
    nothing: str = ""
    number: str = ""
