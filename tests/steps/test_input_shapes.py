"""What an input looks like, as a text that inputs of the same shapes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch.core.signatures import MAX_LENGTH
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.steps.input_shapes import shape_of

pytestmark = pytest.mark.torch


@dataclass
class Batch:
    tokens: Any
    scale: float = 0.5


class Plain:
    pass


class Unshowable:
    def __repr__(self) -> str:
        raise ValueError("of the program")


class Array:
    dtype, shape = "float32", (8, 2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (torch.zeros(8, 4), "f32[8,4]"),
        (torch.zeros(3, dtype=torch.long), "i64[3]"),
        (torch.tensor(1.0), "f32[]"),
        ((torch.zeros(2), 3), "(f32[2], 3)"),
        ([torch.zeros(2), [torch.zeros(3)]], "(f32[2], (f32[3]))"),
        ({"ids": torch.zeros(2), "n": 7}, "{ids: f32[2], n: 7}"),
        (Batch(torch.zeros(2)), "Batch(tokens=f32[2], scale=0.5)"),
        (Array(), "float32[8,2]"),
        (17, "17"),
        (None, "None"),
        ("a\nb", r"'a\nb'"),
        (Unshowable(), "<Unshowable>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_input_is_written_by_what_the_caches_tell_apart(given: Any, text: str) -> None:
    assert shape_of(given) == text


def test_placements_and_mesh_are_part_of_a_shape(group_owner: ProcessGroupOwner) -> None:
    line, grid = (group_owner.mesh(Place(shape, "cpu", "fake")) for shape in ((4,), (2, 2)))
    local = torch.zeros(2, 8)
    assert shape_of(DTensor.from_local(local, line, [Shard(0)])) == "f32[8,8]S0@4"
    assert shape_of((DTensor.from_local(local, grid, [Replicate(), Shard(1)]), 1)) == "(f32[2,16]RS1@2x2, 1)"


def test_values_and_addresses_make_no_other_shape() -> None:
    assert shape_of(torch.zeros(4)) == shape_of(torch.ones(4))
    assert shape_of(Plain()) == shape_of(Plain())


def test_long_inputs_are_cut_and_stay_apart() -> None:
    short, other = shape_of(list(range(999))), shape_of([*range(998), 5])
    assert len(short) == len(other) == MAX_LENGTH
    assert short != other
