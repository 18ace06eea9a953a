"""Copies of results, and their first difference, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import DtDispatchError, MeasurementError, first_line
from pytest_dtdispatch.torchapi.ops import without_outer_modes
from pytest_dtdispatch.torchapi.signatures import dtype_text, shape_text
from pytest_dtdispatch.torchapi.tensors import (
    LocalPart,
    ask_tensor,
    common,
    flatten,
    is_local_mode_open,
    is_tensor,
    local_part,
)

__tracebackhide__ = True  # a test that fails here shows its own line

Equal = Callable[[Any, Any], None]  # raises AssertionError


@dataclass(frozen=True)
class Snapshot:
    """Copy of the result of a call, right after it.

    Args:
        label: label of the called function.
        leaves: leaves by their paths; of each tensor, the local part of this rank.
        spec: pytree spec of the result.
    """

    label: str
    leaves: dict[str, Any]
    spec: Any

    @classmethod
    def of(cls, label: str, result: Any) -> Snapshot:
        """Copy a result: a later call may write to it."""
        # Simulated ranks need their mode; other modes of the program would see these reads.
        with nullcontext() if is_local_mode_open() else without_outer_modes():
            leaves, spec = flatten(result)
            copied = {path: _copy(label, leaf) if is_tensor(leaf) else leaf for path, leaf in leaves}
        return cls(label, copied, spec)


def _copy(label: str, tensor: torch.Tensor) -> LocalPart:
    if ask_tensor(attrgetter("is_meta"), tensor, False):
        raise MeasurementError(f"{label!r} returned a tensor on meta, without contents: count steps")
    try:
        part = local_part(tensor)
    except DtDispatchError:
        raise
    except Exception as error:  # torch cannot copy this layout or subclass to plain memory
        reason = first_line(error)
    else:
        if type(part.values) is torch.Tensor:
            return part
        reason = "its copy has no contents"
    kind = type(tensor).__name__
    refused = f"{label!r} returned a {kind} that cannot be compared ({reason})"
    raise MeasurementError(f"{refused}: return plain tensors or DTensors")


def difference(first: Snapshot, other: Snapshot, is_close: Equal | None = None) -> str:
    """Describe the first difference of two results; return an empty string if they are equal.

    Args:
        first: expected result.
        other: other result.
        is_close: function that raises AssertionError if two values of one type and shape are not close; by
            default they must be equal bit for bit.
    """
    if first.leaves.keys() != other.leaves.keys():  # in any order
        return f"it has values at {shown([*other.leaves])}, and not at {shown([*first.leaves])}"
    with without_outer_modes():
        for path, leaf in first.leaves.items():
            text = _leaf_difference(leaf, other.leaves[path], is_close)
            if text:
                return f"at result{path}, {text}" if path else text
    return ""


def _leaf_difference(first: Any, other: Any, is_close: Equal | None) -> str:
    are_tensors = [type(leaf) is LocalPart for leaf in (first, other)]
    if all(are_tensors):
        return _tensor_difference(first, other, is_close)
    if is_close and type(first) is type(other) is float:
        return _closeness(is_close, other, first)
    try:
        is_equal = not any(are_tensors) and (
            first is other or bool(first == other) or bool(first != first and other != other)
        )
    except Exception as error:  # raised by a class of the user
        return f"a {type(first).__name__} cannot be compared ({type(error).__name__}): pass equal="
    texts = [
        f"a tensor {shape_text(leaf.shape)}" if type(leaf) is LocalPart else shown(leaf)
        for leaf in (other, first)
    ]
    return "" if is_equal else " is not ".join(texts)


def _tensor_difference(first: LocalPart, other: LocalPart, is_close: Equal | None) -> str:
    kinds = [_kind(part) for part in (other, first)]
    if kinds[0] != kinds[1]:
        return " is not ".join(kinds)
    expected, actual = common(first, other)
    if is_close:
        return _closeness(is_close, actual, expected)
    # Compare bytes first: assert_close treats -0.0 and 0.0 as equal.
    bits = [each.contiguous().reshape(-1, 1).view(torch.uint8) for each in (expected, actual)]
    if torch.equal(*bits):
        return ""
    is_equal = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
    return _closeness(is_equal, actual, expected) or "only their bytes differ, as for -0.0 and 0.0"


def _kind(part: LocalPart) -> str:
    """Format dtype and shape; a DTensor may have a shape that its values do not have."""
    values = f" with {part.values.ndim}-dimensional values" if part.values.ndim != len(part.shape) else ""
    return f"{dtype_text(part.values.dtype)}{shape_text(part.shape)}{values}"


def _closeness(is_close: Equal, actual: Any, expected: Any) -> str:
    try:
        is_close(actual, expected)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""
