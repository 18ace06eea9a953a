"""Comparison of the results of variants with the first one, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.core.checks import check_result
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import MeasurementError, UnequalError
from pytest_dtdispatch.replay.results import Snapshot, difference
from pytest_dtdispatch.replay.states import RandomState
from pytest_dtdispatch.replay.storages import host_generator_types
from pytest_dtdispatch.torchapi.ops import without_outer_modes
from pytest_dtdispatch.torchapi.tensors import (
    Heap,
    LocalPart,
    common,
    is_group_fake,
    tree_unflatten,
)

__tracebackhide__ = True  # a test that fails here shows its own line


def call_variants(variants: Variants, call: Callable[[str, Callable[[], Any]], Any] | None = None) -> None:
    """Call each variant once, from the same random state, and compare their results.

    Args:
        variants: variants to compare.
        call: function that calls a variant; by default it is called without arguments.
    """
    cuda = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_initialized() else []
    random = RandomState(cuda, Heap().instances(*host_generator_types()))
    first = None
    for label, fn in variants.functions.items():
        if first is not None:
            random.settle()
            random.rewind()
        result = call(label, fn) if call else fn()
        check_result(f"compare: {label!r}", result)
        snapshot = Snapshot.of(label, result)
        del result
        if first is None:
            first = snapshot
            continue
        with without_outer_modes():
            if variants.equal:
                reason = _call_equal(variants.equal, first, snapshot)
            else:
                reason = difference(first, snapshot)
        if reason:
            pair = escape_controls(f"{label!r} and {first.label!r}")
            if is_group_fake() and any(type(leaf) is LocalPart for leaf in snapshot.leaves.values()):
                reason += "; the collectives of a fake process group move no data: compare results that need "
                reason += "them on --dtdispatch-backend local or gloo, or pass equal="
            raise UnequalError(f"compare {variants.name!r}: the results of {pair} are not equal: {reason}")


def _call_equal(equal: Callable[[Any, Any], object], first: Snapshot, other: Snapshot) -> str:
    """Call the user's function; return why results are not equal, or an empty string.

    It receives both results with plain tensors, reduced to the parts that this rank has of both.
    """
    results = [dict(first.leaves), dict(other.leaves)]
    for path, one in first.leaves.items():
        another = other.leaves.get(path)
        if type(one) is type(another) is LocalPart and one.shape == another.shape:
            results[0][path], results[1][path] = common(one, another)
    plain = []
    for leaves, spec in zip(results, (first.spec, other.spec), strict=True):
        values = [leaf.values if type(leaf) is LocalPart else leaf for leaf in leaves.values()]
        plain.append(tree_unflatten(values, spec))
    try:
        verdict: Any = equal(*plain)
    except AssertionError as error:
        return " ".join(str(error).split()) or "equal= raised AssertionError"
    check_result("compare: equal=", verdict)
    try:
        is_equal = verdict is None or bool(verdict)  # assert_close returns nothing
    except Exception:
        valid = "return True or False, or raise an AssertionError"
        raise MeasurementError(f"equal= returned {shown(verdict)}: it must {valid}") from None
    return "" if is_equal else f"equal= returned false; bit for bit, {difference(first, other) or 'they are'}"
