"""What is asked of op schemas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_dtdispatch.torchapi.op_schemas import arguments_of, op_name

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "written"),
    [
        (torch.ops.aten.add.Tensor, (1, 2), {}, []),
        (torch.ops.aten.add_.Tensor, (1, 2), {}, ["self"]),
        (torch.ops.aten.add.out, (1, 2), {"out": 3}, ["out"]),
        (torch.ops.aten._foreach_mul_.Scalar, ([1], 2), {}, ["self"]),
        (
            torch.ops.aten.native_batch_norm.default,
            (1, None, None, 2, 3, True, 0.1, 0.1),
            {},
            ["running_mean", "running_var"],
        ),
    ],
    ids=["pure", "in place", "out", "foreach", "undeclared"],
)
def test_written_arguments_are_known(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[str]
) -> None:
    assert [a.name for a in arguments_of(func, args, kwargs) if a.is_written] == written


def test_an_op_of_another_namespace_shows_it() -> None:
    assert op_name(torch.ops.aten.add.Tensor) == "add.Tensor"
    assert op_name(torch.ops.prims.add.default) == "prims.add.default"
