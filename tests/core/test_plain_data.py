"""Dataclasses as plain data and back; what is no value of a type is refused in a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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


@dataclass(frozen=True)
class Tree:
    name: str
    parts: tuple[Leaf | Tree, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    cell: str | tuple[Leaf, ...] = ""
    one: Leaf | None = None
    is_old: bool = False


TREE = Tree(
    "<a>\x1b",
    (Leaf(1.5), Tree("inner", one=Leaf(float("inf")))),
    (("n", 3),),
    {"k": "v"},
    (Leaf(2.0),),
    None,
    True,
)


def test_what_was_written_is_read_again() -> None:
    assert decode(Tree, json.loads(json.dumps(encode(TREE), allow_nan=False))) == TREE


def test_fields_with_a_default_may_be_missing_and_others_are_left_out() -> None:
    assert decode(Tree, {"name": "a", "later": [1]}) == Tree("a")


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a missing field": (Tree, {}, "a Tree without name"),
    "another type": (Tree, {"name": 3}, "no str: 3"),
    "no bool": (Tree, {"name": "a", "is_old": 1}, "no bool: 1"),
    "a list": (Tree, [], "no dict: []"),
    "an unknown word": (Color, "blue", "'blue' is not a valid Color"),
    "an unknown dataclass": (Tree, {"name": "a", "parts": [{"type": "os.system"}]}, "a os.system where none"),
    "too many": (Tree, {"name": "a", "pairs": [["n", 1, 2]]}, "3 items in place of 2"),
    "no number": (Leaf, {"size": "1.5"}, "no float: '1.5'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_such_value_is_said_shortly(what: str) -> None:
    kind, plain, said = WRONG[what]
    with pytest.raises(ValueError, match=r".") as error:
        decode(kind, plain)
    assert str(error.value).startswith(said)


@given(odd_json)
def test_anything_is_a_tree_or_a_value_error(plain: object) -> None:
    for data in (plain, {"name": "a", "parts": plain, "cell": plain, "one": plain, "pairs": plain}):
        with suppress(ValueError):
            assert isinstance(decode(Tree, data), Tree)
