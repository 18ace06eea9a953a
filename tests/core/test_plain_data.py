"""Dataclasses as plain data and back; values of the wrong type have a short error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given

from pytest_dtdispatch.core.plain_data import decode, encode
from tests.fuzz.inputs import odd_json


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    size: float
    color: Color = Color.RED
    share: Annotated[float, 0, 1] = 0.0


@dataclass(frozen=True)
class Tree:
    name: str
    parts: tuple[Leaf | Tree, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    cell: str | tuple[Leaf, ...] = ""
    one: Leaf | None = None
    is_old: bool = False
    depth: Annotated[int, 0, 9] = 0


TREE = Tree(
    "<a>\x1b",
    (Leaf(1.5), Tree("inner", one=Leaf(float("inf")))),
    (("n", 3),),
    {"k": "v"},
    (Leaf(2.0),),
    None,
    True,
)


def test_decoded_value_equals_the_encoded_one() -> None:
    assert decode(Tree, json.loads(json.dumps(encode(TREE), allow_nan=False))) == TREE


def test_fields_with_a_default_may_be_missing() -> None:
    assert decode(Tree, {"name": "a"}) == Tree("a")


def test_members_of_later_versions_are_ignored() -> None:
    assert decode(
        Tree, {"name": "a", "parts": [{"type": "Leaf", "size": 1, "weight": 2}], "height": 3}
    ) == Tree("a", (Leaf(1.0),))


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a missing field": (Tree, {}, "a Tree without name"),
    "another type": (Tree, {"name": 3}, "no str: 3"),
    "no bool": (Tree, {"name": "a", "is_old": 1}, "no bool: 1"),
    "a list": (Tree, [], "no dict: []"),
    "an unknown word": (Color, "blue", "'blue' is not a valid Color"),
    "an unknown dataclass": (
        Tree,
        {"name": "a", "parts": [{"type": "os.system"}]},
        "a os.system of an invalid type",
    ),
    "400 digits": (Leaf, {"size": 10**400}, "1000"),
    "no value": (Leaf, {"size": math.nan}, "nan in place of a number"),
    "a great int": (Tree, {"name": "a", "pairs": [["n", 2**63 + 1]]}, "9223372036854775809 in place of "),
    "below its range": (Tree, {"name": "a", "depth": -1}, "-1 in place of 0 to 9 (depth of a Tree)"),
    "above its range": (
        Tree,
        {"name": "a", "one": {"type": "Leaf", "size": 1, "share": 1.5}},
        "1.5 in place",
    ),
    "no number": (Leaf, {"size": "1.5"}, "no float: '1.5'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_value_has_a_short_error(case: str) -> None:
    kind, plain, message = WRONG[case]
    with pytest.raises(ValueError, match=r".") as error:
        decode(kind, plain)
    assert str(error.value).startswith(message)


@given(odd_json)
def test_anything_is_a_tree_or_a_value_error(plain: object) -> None:
    for data in (plain, {"name": "a", "parts": plain, "cell": plain, "one": plain, "pairs": plain}):
        with suppress(ValueError):
            assert isinstance(decode(Tree, data), Tree)
