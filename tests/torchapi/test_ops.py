"""Queries of op schemas and dispatch modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import (
    close_modes_opened_since,
    is_mode_of_program,
    is_written,
    op_name,
    open_modes,
    without_outer_modes,
)
from tests.measured_runs import NamingMode

pytestmark = pytest.mark.torch


UNDECLARED = (1, None, None, 2, 3, True, 0.1, 0.1)


@pytest.mark.parametrize(
    ("func", "args", "written"),
    [
        (torch.ops.aten.add.Tensor, (1, 2), []),
        (torch.ops.aten.add_.Tensor, (1, 2), ["self"]),
        (torch.ops.aten.add.out, (1, 2), ["out"]),
        (torch.ops.aten._foreach_mul_.Scalar, ([1], 2), ["self"]),
        (torch.ops.aten.native_batch_norm.default, UNDECLARED, ["running_mean", "running_var"]),
    ],
)
def test_written_arguments_are_detected(func: Any, args: tuple[Any, ...], written: list[str]) -> None:
    kwargs = {"out": 3} if written == ["out"] else {}
    assert [a.name for a, _ in OpCall(func, args, kwargs).named() if is_written(a)] == written


def test_arguments_of_a_call_are_flattened_once() -> None:
    a, b, c = torch.rand(2), torch.rand(2), torch.rand(2)
    call = OpCall(torch.ops.aten._foreach_add_.List, ([a, b], [c, c]), {"alpha": 2})
    assert [*map(id, call.leaves)] == [*map(id, (a, b, c, c)), id(2)]
    assert [*map(id, call.tensors)] == [*map(id, (a, b, c, c))]
    assert [*map(id, call.written)] == [*map(id, (a, b))]
    assert call.tensors is call.tensors
    assert call.written is call.written
    assert (call.mesh, call.has_dtensor, call.is_on_meta) == (None, False, False)


def test_call_without_schema_may_write_to_all_tensors() -> None:
    a, b = torch.rand(2), torch.rand(2)
    call = OpCall(torch.ops.higher_order.cond, (True, (a, b)))
    assert [*map(id, call.written)] == [*map(id, (a, b))]
    assert call.skip_reason == "a higher-order operator runs once"


def test_op_name_includes_foreign_namespace() -> None:
    assert op_name(torch.ops.aten.add.Tensor) == "add.Tensor"
    assert op_name(torch.ops.prims.add.default) == "prims.add.default"


def test_modes_of_the_program_are_recognized_and_hidden() -> None:
    assert not is_mode_of_program(FakeTensorMode())
    assert not is_mode_of_program(object())
    with NamingMode() as mode:
        assert is_mode_of_program(mode)
        assert open_modes() == [mode]
        with without_outer_modes():
            assert open_modes() == []
        assert open_modes() == [mode]


@pytest.mark.parametrize("half_closed", [False, True])
def test_interrupted_modes_are_closed(half_closed: bool) -> None:
    with NamingMode() as outer:
        left = FakeTensorMode()
        left.__enter__()
        NamingMode().__enter__()  # type: ignore[no-untyped-call]
        if half_closed:  # as if a signal interrupts its exit
            left.enter_stack.clear()
        assert close_modes_opened_since([outer]) == ["NamingMode", "FakeTensorMode"]
        assert open_modes() == [outer]
    assert open_modes() == []
