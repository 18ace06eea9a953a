"""What each case runs: the part that is measured, and what a program does after it."""

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
from tests.sweep.cases import OPS, Case, Sample, distribute, flipped, is_dense, place, unchanged


@dataclass(frozen=True)
class Program:
    """A program of one op, with arguments of its own.

    Args:
        measured: the part that a whole call measures, called with ``given``.
        given: the tensors that it works on, as arguments.
        after: what follows, called with the result; a capture is still open then.
        later: further arguments that what follows works on.
    """

    measured: Callable[..., Any]
    given: Sample
    after: Callable[[Any], Any]
    later: Any = field(default=None)


class Programs:
    """Make the program of a case, as often as wanted, always the same.

    Args:
        case: the case.
        sample: its sample.
        mesh: of one dimension.
    """

    def __init__(self, case: Case, sample: Sample, mesh: DeviceMesh) -> None:
        self._case = case
        self._sample = sample
        self._mesh = mesh
        self._op = OPS[case.op]
        self._out = self._find_out() if case.form == "out" else None

    def make(self) -> Program:
        """Make it anew."""
        given = self._arguments(unchanged)
        form = self._case.form
        if form == "in place":
            return Program(self._op.get_inplace(), given, nothing)
        if form == "out":
            out = tree_map(self._copy_out, self._out)
            given = Sample(given.args, {**given.kwargs, "out": out})
            return Program(self._op, given, nothing)
        if form == "backward":
            return Program(lambda *args, **kwargs: backward(self._op(*args, **kwargs)), given, nothing)
        if form == "backward after":
            return Program(self._op, given, backward)
        again = self._arguments(flipped)  # the next batch, with the plans that the first one left

        def later(result: Any) -> Any:
            return reduced(result), reduced(self._op(*again.args, **again.kwargs))

        return Program(self._op, given, later, again)

    def _arguments(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        return place(self._sample, self._case.placed, self._mesh, change)

    def _find_out(self) -> Any:
        """Find what ``out=`` may be: as the result is; where torch refuses that, as of plain tensors."""
        try:
            given = self._arguments(unchanged)
            return self._op(*given.args, **given.kwargs)
        except Exception:  # whatever torch says: the case itself shows it
            return self._op(*self._sample.args, **self._sample.kwargs)

    def _copy_out(self, leaf: Any) -> Any:
        """Make an output like a tensor, with contents of its own."""
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
    """Return the results, those that are partial reduced: a masked one forgets its mask by that."""
    return tree_map(_reduced, result)


def _reduced(leaf: Any) -> Any:
    if isinstance(leaf, DTensor) and any(placement.is_partial() for placement in leaf.placements):
        return leaf.redistribute(placements=[Replicate()] * leaf.device_mesh.ndim)
    return leaf


def backward(result: Any) -> Any:
    """Run the backward pass of every tensor among the results that has one, and return the results."""
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    outputs = [output for output in outputs if output.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return result


def nothing(result: Any) -> None:
    """Do nothing after the measured part."""
