"""Owners of stack frames, and the function of torch that a line called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_dtdispatch.lines.frames import Frames

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("file", "name", "called"),
    [
        ("distributed/checkpoint/state_dict.py", "load", "load"),
        ("optim/lbfgs.py", "step", "step"),
        ("optim/optimizer.py", "wrapper", ""),
        ("nn/modules/linear.py", "forward", ""),
        ("distributed/tensor/_api.py", "full_tensor", ""),
        ("distributed/tensor/parallel/style.py", "_prepare_input_fn", "_prepare_input_fn"),
        ("distributed/distributed_c10d.py", "all_reduce", ""),
        ("distributed/distributed_c10d.py", "all_gather_object", "all_gather_object"),
    ],
)
def test_code_of_torch_between_a_call_and_its_line(file: str, name: str, called: str) -> None:
    """The function is compiled as one of that file."""
    path = str(Path(torch.__file__).parent / file)
    namespace: dict[str, Any] = {}
    exec(compile(f"def {name}(ask): return ask()", path, "exec"), namespace)
    assert namespace[name](Frames().called_by) == called


class Block(torch.nn.Module):
    def forward(self, x: Any, convert: Any, *, y: Any = None) -> Any:
        return [convert(each) for each in (x, y, torch.ones(1))]


class NormedBlock(torch.nn.Module):
    def forward(self, x: Any, convert: Any) -> Any:
        x = x * 2
        return (lambda: convert(x))()


class ShapedBlock(torch.nn.Module):
    def forward(self, x: Any, convert: Any) -> Any:
        return convert(x), x.shape, ()  # a constant that is a tuple


def test_plan_converts_arguments_of_a_forward() -> None:
    path = str(Path(torch.__file__).parent / "distributed/tensor/parallel/style.py")
    namespace: dict[str, Any] = {"input_of": Frames().input_of}
    exec(compile("def convert(x): return input_of(x)", path, "exec"), namespace)
    x, y, convert = torch.ones(1), torch.ones(1), namespace["convert"]
    found = Block()(x, convert, y=y)
    assert [each and (each.name, each.positional, each.uses) for each in found] == [
        ("x", 2, (1, frozenset())),
        ("y", 2, (1, frozenset())),
        None,
    ]
    assert ShapedBlock()(x, convert)[0].uses == (1, {"shape"})
    assert Block()(x, convert, y=x)[0] is None  # which of both?
    assert NormedBlock()(x, convert) is None
    assert Block()(x, lambda each: Frames().input_of(each))[0] is None
