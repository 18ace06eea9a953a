"""What can be compared, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import CaptureError, CompareError, DtDispatchError


def one() -> int:
    return 1


@pytest.mark.parametrize(
    ("variants", "given", "says"),
    [
        ({"a": one}, {}, "compare() of 1 variants: it takes two at the least"),
        ({}, {}, "compare() of 0 variants: it takes two at the least"),
        ([one, one], {}, "it takes callables by their names"),
        ({"a": one, 2: one}, {}, "the name 2 of a variant is not a text, or is empty"),
        ({"a": one, " ": one}, {}, "the name ' ' of a variant is not a text, or is empty"),
        ({"a": one, "a ": one}, {}, "two variants have the same name"),
        ({"a": one, "b": lambda x: x}, {}, "the variant 'b' takes arguments (x), and compare() gives none"),
        ({"a": one, "b": one}, {"equal": True}, "compare(equal=True): it takes a function of two results"),
        ({"a": one, "b": one}, {"name": ""}, "compare(name=''): a name is a text, and not empty"),
        ({"a": one, "b": one}, {"name": 3}, "compare(name=3): a name is a text, and not empty"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(variants: Any, given: Any, says: str) -> None:
    with pytest.raises(CompareError) as refused:
        DtDispatch().compare(variants, **given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_variant_that_cannot_be_called() -> None:
    with pytest.raises(CaptureError, match=r"'b'.*a value of type int is not callable"):
        DtDispatch().compare({"a": one, "b": 3})  # type: ignore[dict-item]


def test_nothing_runs_before_all_variants_are_looked_at() -> None:
    ran: list[int] = []
    bad: list[Callable[..., Any]] = [lambda x: x]
    with pytest.raises(DtDispatchError):
        DtDispatch().compare({"a": lambda: ran.append(1), "b": bad[0]})
    assert not ran
