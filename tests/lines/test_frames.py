"""Owners of stack frames, and the function of torch that a line called."""

from __future__ import annotations

import sys
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
        ("distributed/distributed_c10d.py", "all_reduce", ""),
        ("distributed/distributed_c10d.py", "all_gather_object", "all_gather_object"),
    ],
)
def test_code_of_torch_between_a_call_and_its_line(file: str, name: str, called: str) -> None:
    """The function is compiled as one of that file, and asks for the frame that it runs in."""
    path = str(Path(torch.__file__).parent / file)
    namespace: dict[str, Any] = {"sys": sys}
    exec(compile(f"def {name}(ask): return ask(sys._getframe())", path, "exec"), namespace)
    assert namespace[name](Frames().called_by) == called
