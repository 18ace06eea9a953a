"""Comparison of results with the first one, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.core.checks import check_result
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import DtDispatchError, MeasurementError, UnequalError, first_line
from pytest_dtdispatch.replay.call import dtype_text, shape_text
from pytest_dtdispatch.replay.states import HostRandomState, RandomState
from pytest_dtdispatch.replay.storages import host_generator_types
from pytest_dtdispatch.torchapi.ops import without_outer_modes
from pytest_dtdispatch.torchapi.tensors import (
    Heap,
    LocalPart,
    ask_tensor,
    common,
    flatten,
    is_group_fake,
    is_local_mode_open,
    is_tensor,
    local_part,
    tree_unflatten,
)

__tracebackhide__ = True  # a test that fails here shows its own line


@dataclass(frozen=True)
class Snapshot:
    """Copy of the result of a variant, right after its call.

    Args:
        label: label of the variant.
        leaves: leaves by their paths; of each tensor, the local part of this rank.
        spec: pytree spec of the result.
    """

    label: str
    leaves: dict[str, Any]
    spec: Any

    @classmethod
    def of(cls, label: str, result: Any) -> Snapshot:
        """Copy a result: a later variant may write to it."""
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


def call_variants(variants: Variants, call: Callable[[str, Callable[[], Any]], Any] | None = None) -> None:
    """Call each variant once, from the same random state, and compare their results.

    Args:
        variants: variants to compare.
        call: function that calls a variant; by default it is called without arguments.
    """
    cuda = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_initialized() else []
    random = RandomState(cuda), HostRandomState(Heap().instances(*host_generator_types()))
    first = None
    for label, fn in variants.functions.items():
        if first is not None:
            for state in random:
                state.settle()
                state.rewind()
        result = call(label, fn) if call else fn()
        check_result(f"compare: {label!r}", result)
        # Simulated ranks need their mode; other modes of the program would see the reads below.
        with nullcontext() if is_local_mode_open() else without_outer_modes():
            snapshot = Snapshot.of(label, result)
        del result
        if first is None:
            first = snapshot
        else:
            _check_equal(variants, first, snapshot)


def _check_equal(variants: Variants, first: Snapshot, other: Snapshot) -> None:
    with without_outer_modes():
        reason = _call_equal(variants.equal, first, other) if variants.equal else difference(first, other)
    if reason:
        pair = escape_controls(f"{other.label!r} and {first.label!r}")
        has_tensors = any(type(leaf) is LocalPart for leaf in other.leaves.values())
        hint = ""
        if has_tensors and is_group_fake():
            hint = (
                "; the collectives of a fake process group move no data: compare results that need them on "
                "--dtdispatch-backend local or gloo, or pass equal="
            )
        raise UnequalError(f"compare {variants.name!r}: the results of {pair} are not equal: {reason}{hint}")


def _call_equal(equal: Callable[[Any, Any], object], first: Snapshot, other: Snapshot) -> str:
    """Call the user's function; return why results are not equal, or an empty string."""
    try:
        verdict: Any = equal(*_plain(first, other))
    except AssertionError as error:
        return " ".join(str(error).split()) or "equal= raised AssertionError"
    check_result("compare: equal=", verdict)
    try:
        is_equal = verdict is None or bool(verdict)  # assert_close returns nothing
    except Exception:
        raise MeasurementError(
            f"equal= returned {shown(verdict)}: it must return True or False, or raise an AssertionError"
        ) from None
    return "" if is_equal else f"equal= returned false; bit for bit, {difference(first, other) or 'they are'}"


def _plain(first: Snapshot, other: Snapshot) -> list[Any]:
    """Return both results with plain tensors, reduced to the parts that this rank has of both."""
    results = [dict(first.leaves), dict(other.leaves)]
    for path, one in first.leaves.items():
        another = other.leaves.get(path)
        if type(one) is type(another) is LocalPart and one.shape == another.shape:
            results[0][path], results[1][path] = common(one, another)
    return [
        tree_unflatten([leaf.values if type(leaf) is LocalPart else leaf for leaf in leaves.values()], spec)
        for leaves, spec in zip(results, (first.spec, other.spec), strict=True)
    ]


def difference(first: Snapshot, other: Snapshot) -> str:
    """Describe the first difference of two results; return an empty string if they are equal bit for bit."""
    if [*first.leaves] != [*other.leaves]:
        return f"it has values at {shown([*other.leaves])}, and not at {shown([*first.leaves])}"
    for path, leaf in first.leaves.items():
        if text := _leaf_difference(leaf, other.leaves[path]):
            return f"at result{path}, {text}" if path else text
    return ""


def _leaf_difference(first: Any, other: Any) -> str:
    are_tensors = [type(leaf) is LocalPart for leaf in (first, other)]
    if all(are_tensors):
        return _tensor_difference(first, other)
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


def _tensor_difference(first: LocalPart, other: LocalPart) -> str:
    kinds = [f"{dtype_text(part.values.dtype)}{shape_text(part.shape)}" for part in (other, first)]
    if kinds[0] != kinds[1]:
        return " is not ".join(kinds)
    expected, actual = common(first, other)
    # Compare bytes first: assert_close treats -0.0 and 0.0 as equal.
    ours, theirs = (each.contiguous().reshape(-1, 1).view(torch.uint8) for each in (expected, actual))
    if torch.equal(ours, theirs):
        return ""
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return "only their bytes differ, as for -0.0 and 0.0"
