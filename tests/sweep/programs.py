"""Programs of the cases: the measured part, and the rest of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_map

from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.sweep.cases import Case, Sample, distribute, flipped, is_dense, ops, place, unchanged


@dataclass(frozen=True)
class Program:
    """A program of one op, with its own arguments.

    Args:
        measured: the measured part, called with ``inputs``.
        inputs: its arguments.
        after: the rest, called with the result while the capture is still open.
        later: further arguments of the rest.
    """

    measured: Callable[..., Any]
    inputs: Sample
    after: Callable[[Any], Any]
    later: Any = field(default=None)


class Programs:
    """Factory of equal programs of a case.

    Args:
        case: the case.
        sample: its sample.
        mesh: 1-D mesh.
    """

    def __init__(self, case: Case, sample: Sample, mesh: DeviceMesh) -> None:
        self._case = case
        self._sample = sample
        self._mesh = mesh
        self._op = ops()[case.op]
        self._out = self._find_out() if case.form == "out" else None

    def make(self) -> Program:
        """Create a program."""
        inputs = self._arguments(unchanged)
        form = self._case.form
        if form == "in place":
            return Program(self._op.get_inplace(), inputs, nothing)
        if form == "out":
            out = tree_map(self._copy_out, self._out)
            inputs = Sample(inputs.args, {**inputs.kwargs, "out": out})
            return Program(self._op, inputs, nothing)
        if form == "backward":
            return Program(lambda *args, **kwargs: backward(self._op(*args, **kwargs)), inputs, nothing)
        if form == "backward after":
            return Program(self._op, inputs, backward)
        again = self._arguments(flipped)  # the next batch, with the plans cached by the first

        def later(result: Any) -> Any:
            return reduced(result), reduced(self._op(*again.args, **again.kwargs))

        return Program(self._op, inputs, later, again)

    def _arguments(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        return place(self._sample, self._case.placed, self._mesh, change)

    def _find_out(self) -> Any:
        """Return a template of ``out=``: the result, or that of plain tensors if torch refuses DTensors."""
        try:
            inputs = self._arguments(unchanged)
            return self._op(*inputs.args, **inputs.kwargs)
        except Exception:  # the case itself raises the same error
            return self._op(*self._sample.args, **self._sample.kwargs)

    def _copy_out(self, leaf: Any) -> Any:
        """Create an output like a tensor, with new contents."""
        if isinstance(leaf, DTensor):
            local = torch.zeros_like(local_of(leaf))
            return DTensor.from_local(
                local,
                leaf.device_mesh,
                leaf.placements,
                run_check=False,
                shape=leaf.shape,
                stride=leaf.stride(),
            )
        if is_dense(leaf):
            return distribute(torch.zeros_like(leaf), self._mesh, Replicate(), has_grad=False)
        return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf


def reduced(result: Any) -> Any:
    """Return the results, with partial ones reduced, which releases the mask of a masked one."""
    return tree_map(_reduced, result)


def _reduced(leaf: Any) -> Any:
    if isinstance(leaf, DTensor) and any(placement.is_partial() for placement in leaf.placements):
        return leaf.redistribute(placements=[Replicate()] * leaf.device_mesh.ndim)
    return leaf


def backward(result: Any) -> Any:
    """Run backward of every result that requires gradients, and return the results."""
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    outputs = [output for output in outputs if output.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return result


def nothing(result: Any) -> None:
    """Return the result: the program ends after the measured part."""
