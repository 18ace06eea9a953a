"""Calls on full values, and comparison of their results with those of DTensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.torchapi.calls import OpCall, leaves_of
from pytest_dtdispatch.torchapi.shards import (
    Full,
    MisfitError,
    NoValueError,
    default_tolerances,
    full_values,
    tree_map,
)
from pytest_dtdispatch.torchapi.tensors import is_dtensor, is_tensor, storage_key
from pytest_dtdispatch.verify.model import Fault

Trials = Callable[[], Sequence[torch.Tensor]]
_NOISE = torch.Generator()  # not the program's: its random state must not change


class FullCall:
    """A call of an op on the full values of its arguments.

    Args:
        call: the call on DTensors.
        arguments: full values by the id of the tensor among its arguments.

    Attributes:
        written: arguments that the op writes to.
        views: number of each result that shares memory with an argument after :meth:`run`, and the argument.
    """

    def __init__(self, call: OpCall, arguments: Mapping[int, Full]) -> None:
        self.written = call.written
        self.views: list[tuple[int, torch.Tensor]] = []
        self._call = call
        self._arguments = arguments

    def leaves(self, result: Any) -> list[Any]:
        """Return the leaves of a result that are defined, and the arguments that the op wrote to."""
        name, leaves = self._call.func.__name__, leaves_of([result])
        is_attention = "attention" in name and "backward" not in name  # other results are for its backward
        return [*(leaves[:1] if is_attention else leaves), *self.written]

    def run(self, copy: Callable[[Full], torch.Tensor] = lambda full: full.values.clone()) -> list[Any]:
        """Run the op on copies of its arguments, and return leaves like those of the program's call.

        Raises:
            NoValueError: the op raises.
        """
        copies = {number: copy(full) for number, full in self._arguments.items()}
        args, kwargs = tree_map(lambda leaf: copies.get(id(leaf), leaf), (self._call.args, self._call.kwargs))
        try:
            results = self.leaves(self._call.func(*args, **kwargs))
        except Exception as error:
            raise NoValueError(f"that raise on full tensors ({first_line(error)})") from None
        self.views = [
            (number, each)
            for each in filter(is_dtensor, self._call.tensors)
            for number, result in enumerate(results)
            if type(result) is torch.Tensor and storage_key(result) == storage_key(copies[id(each)])
        ]
        leaves = (copies.get(id(each), each) for each in results)
        return [Full(each) if is_tensor(each) else each for each in leaves]

    def trials(self, number: int) -> list[torch.Tensor]:
        """Return a result by its number on wider and on perturbed arguments; empty if it must be exact."""
        has_sums = any(full.size is not None for full in self._arguments.values())
        found: list[torch.Tensor] = []
        if has_sums or not self._call.is_pointwise:  # else each element is computed from the same bits
            for copy in (_widened, *[_perturbed] * 4):
                with suppress(NoValueError):  # such an argument is invalid
                    found.append(self.run(copy)[number].values)
        return found


def _is_exact(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _widened(full: Full) -> torch.Tensor:
    """Return values in the widest dtype, which show the rounding error of the kernel itself."""
    return full.values.clone() if _is_exact(full.values.dtype) else _wide(full.values).clone()


def _perturbed(full: Full) -> torch.Tensor:
    """Return values with a relative error of up to four units in the last place of the largest summand."""
    values = full.values
    if _is_exact(values.dtype):
        return values.clone()
    size = values.abs() if full.size is None else full.size
    noise = torch.rand(values.shape, generator=_NOISE).to(values.device, size.dtype)
    return values - values.sgn() * size * noise * (4 * torch.finfo(size.dtype).eps)


def fault_of(
    tensor: Any, shards: Sequence[torch.Tensor], expected: Full | None = None, trials: Trials = tuple
) -> tuple[Fault | None, str, Full]:
    """Return the fault of a tensor, its description, and the full value; without a reference, of itself."""
    replicas = [Full(shard) for shard in shards]
    if expected and tensor.shape != expected.values.shape:
        return Fault.SHAPE, f"{[*tensor.shape]} instead of {[*expected.values.shape]}", replicas[0]
    try:
        replicas = full_values(tensor, shards) if is_dtensor(tensor) else replicas
    except MisfitError as error:
        return Fault.WRAPPER, str(error), replicas[0]
    for other in replicas[1:]:
        if text := difference(other, replicas[0]):
            return Fault.RANKS, f"labelled replicated, and ranks differ: {text}", replicas[0]
    if expected and tensor.dtype != expected.values.dtype:
        return Fault.DTYPE, f"{tensor.dtype} instead of {expected.values.dtype}", replicas[0]
    text = difference(replicas[0], expected, trials) if expected else ""
    return Fault.VALUES if text else None, text, replicas[0]


def are_close(one: Any, other: Any) -> bool:
    """Return whether two numbers are equal, or close if they are floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def difference(got: Full, expected: Full, trials: Trials = tuple) -> str:
    """Describe the largest difference of two results; return an empty string if they are close.

    Values are close within the tolerance of ``torch.testing.assert_close`` for their dtype, where the
    absolute part is reduced for tensors of small values. Otherwise the op runs on perturbed arguments, and on
    arguments of the widest dtype: results that change by as much as they differ are close too.
    """
    dtype = expected.values.dtype
    if got.values.shape != expected.values.shape:
        return f"{[*got.values.shape]} instead of {[*expected.values.shape]}"
    actual, exact = _wide(got.values), _wide(expected.values)
    if _is_exact(dtype):
        unequal = got.values != expected.values
        for trial in trials() if unequal.any() else ():
            unequal &= trial == expected.values  # an undecided comparison or position
        return _described(actual, exact, unequal)
    sizes = (full.size.to(torch.float64) for full in (got, expected) if full.size is not None)
    size = functools.reduce(torch.maximum, sizes, exact.abs())
    is_finite = exact.isfinite() & actual.isfinite()
    largest = torch.where(is_finite, size, 0.0).max().clamp(max=1.0) if size.numel() else 0.0
    relative, absolute = default_tolerances(dtype)
    limit = relative * size + absolute * largest
    gap, is_same = (actual - exact).abs(), (actual == exact) | (actual.isnan() & exact.isnan())
    unequal = ~is_same & ~(is_finite & (gap <= limit))
    changes = [(_wide(trial) - exact).abs() for trial in trials()] if unequal.any() else ()
    for change in changes:
        most = torch.where(change.isfinite(), change, 0.0).max()
        # Two correct orders of summation differ by less than 8 times the change that perturbed arguments
        # cause, by up to four units in the last place, or the error of the op on full tensors.
        unequal &= ~(is_finite & (gap <= relative * size + 8 * most))
    return _described(actual, exact, unequal)


def _described(actual: torch.Tensor, exact: torch.Tensor, unequal: torch.Tensor) -> str:
    """Describe unequal elements, with the largest difference; return an empty string if there are none."""
    count = int(unequal.sum())
    if not count:
        return ""
    gap = (actual - exact).abs().nan_to_num(torch.inf)
    at = int(torch.where(unequal, gap, -1.0).argmax())
    values = " instead of ".join(f"{each.flatten()[at].item():.6g}" for each in (actual, exact))
    if unequal.numel() > 1:
        return f"{count:,} of {unequal.numel():,} elements differ, such as {values}"
    return values
