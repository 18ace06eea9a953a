"""Whether variants give the same: results held against that of the first, leaf by leaf."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from pytest_dtdispatch.compare.model import Variants
from pytest_dtdispatch.core.shown import printable, shown
from pytest_dtdispatch.errors import CompareError, UnequalError
from pytest_dtdispatch.measuring.call import dtype_text, shape_text
from pytest_dtdispatch.measuring.replay import RandomState
from pytest_dtdispatch.torchapi.ops import without_outer_modes
from pytest_dtdispatch.torchapi.tensors import (
    KnownPart,
    common,
    flatten,
    is_group_fake,
    is_local_mode_open,
    known_part,
    unflatten,
)

FAKE_HINT = (
    "; the collectives of a fake process group move no data, so compare what needs them on "
    "--dtdispatch-backend local or gloo, or give equal="
)


@dataclass(frozen=True)
class HeldResult:
    """What a variant gave, as it was right after its call.

    Args:
        label: of the variant.
        leaves: where each leaf stands, and what it is: of tensors what this rank knows of them.
        spec: what puts leaves together again.
    """

    label: str
    leaves: tuple[tuple[str, Any], ...]
    spec: Any

    @property
    def has_tensors(self) -> bool:
        """Whether some of it is a tensor."""
        return any(isinstance(leaf, KnownPart) for _, leaf in self.leaves)

    @property
    def paths(self) -> list[str]:
        """Where each leaf stands."""
        return [path for path, _ in self.leaves]


class Reference:
    """What the first variant gave, which the others must give too."""

    def __init__(self, asked: Variants) -> None:
        self._asked = asked
        cuda = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_initialized() else []
        self._random = RandomState(cuda)
        self._first: HeldResult | None = None

    def begin(self) -> None:
        """Put random states back to what the first variant found."""
        if self._first is not None:
            self._random.settle()
            self._random.rewind()

    def hold(self, label: str, result: Any) -> None:
        """Keep the result of the first variant; hold that of any other against it."""
        __tracebackhide__ = True
        # Simulated ranks need their mode; any other of the program would see what is read here.
        with nullcontext() if is_local_mode_open() else without_outer_modes():
            held = held_result(label, result)
        if self._first is None:
            self._first = held
            return
        with without_outer_modes():
            against = self._against(self._first, held)
        if against:
            pair = printable(f"{label!r} and {self._first.label!r}")
            hint = FAKE_HINT if held.has_tensors and is_group_fake() else ""
            raise UnequalError(
                f"compare {self._asked.name!r}: the results of {pair} are not equal: {against}{hint}"
            )

    def _against(self, first: HeldResult, other: HeldResult) -> str:
        """Say what makes two results unequal; empty where they are equal."""
        __tracebackhide__ = True
        if self._asked.equal is None:
            return difference(first, other)
        results = _as_given(first, other)
        try:
            verdict = self._asked.equal(*results)
        except AssertionError as error:
            return " ".join(str(error).split()) or "equal= raised AssertionError"
        if verdict is None or _is_true(verdict):  # assert_close returns nothing
            return ""
        return f"equal= says so; bit for bit, {difference(first, other) or 'they are'}"


def call_and_hold(asked: Variants) -> None:
    """Call each variant once, and hold what they give against each other."""
    __tracebackhide__ = True
    reference = Reference(asked)
    for label, fn in asked.functions.items():
        reference.begin()
        reference.hold(label, fn())


def held_result(label: str, result: Any) -> HeldResult:
    """Copy what a variant gave: a later variant may write to it."""
    leaves, spec = flatten(result)
    known = ((path, known_part(leaf) if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in leaves)
    return HeldResult(label, tuple(known), spec)


def difference(first: HeldResult, other: HeldResult) -> str:
    """Say where two results differ first, and by how much; empty where they are equal bit for bit."""
    if first.paths != other.paths:
        return f"{first.label!r} gives {_structure(first)}, and {other.label!r} gives {_structure(other)}"
    for (path, one), (_, another) in zip(first.leaves, other.leaves, strict=True):
        if text := _leaf_difference(one, another):
            return f"at result{path}, {text}" if path else text
    return ""


def _leaf_difference(first: Any, other: Any) -> str:
    if isinstance(first, KnownPart) and isinstance(other, KnownPart):
        return _tensor_difference(first, other)
    if type(first) is type(other) or (not isinstance(first, KnownPart) and not isinstance(other, KnownPart)):
        try:
            is_equal = first is other or bool(first == other) or bool(first != first and other != other)
        except Exception as error:  # what the users' own classes raise
            return f"a {type(first).__name__} cannot be compared ({type(error).__name__}): give equal="
        return "" if is_equal else f"{shown(other)} is not {shown(first)}"
    return f"{_leaf_text(other)} is not {_leaf_text(first)}"


def _tensor_difference(first: KnownPart, other: KnownPart) -> str:
    kinds = [f"{dtype_text(part.values.dtype)}{shape_text(part.shape)}" for part in (first, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[1]} is not {kinds[0]}"
    ours, theirs = common(first, other)
    if torch.equal(_bits(ours), _bits(theirs)):
        return ""
    differ = (_bits(ours) != _bits(theirs)).reshape(ours.numel(), -1).any(dim=1)
    ours, theirs = (part.reshape(-1).to(_wide(part.dtype)) for part in (ours, theirs))
    apart = torch.where(differ, (ours - theirs).abs().double(), -1.0)
    apart = torch.where(apart.isnan(), torch.inf, apart)
    worst = int(apart.argmax())
    largest = f"{apart[worst]:g}" if apart[worst].isfinite() else "not a number"
    count = f"{int(differ.sum()):,} of {differ.numel():,} elements differ"
    return f"{count}, the largest difference is {largest}: {theirs[worst].item()} is not {ours[worst].item()}"


def _bits(values: torch.Tensor) -> torch.Tensor:
    """View the elements of a tensor as bytes, one row each."""
    return values.contiguous().reshape(-1, 1).view(torch.uint8)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Give a type in which a difference of two elements can be had."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def _as_given(first: HeldResult, other: HeldResult) -> tuple[Any, Any]:
    """Give two results with plain tensors, cut to what is known of both where one is known in part."""
    pairs = list(zip(first.leaves, other.leaves, strict=False))
    ours, theirs = _values(first), _values(other)
    if first.paths == other.paths:
        for number, ((_, one), (_, another)) in enumerate(pairs):
            both = isinstance(one, KnownPart) and isinstance(another, KnownPart)
            if both and one.shape == another.shape:
                ours[number], theirs[number] = common(one, another)
    return unflatten(ours, first.spec), unflatten(theirs, other.spec)


def _values(held: HeldResult) -> list[Any]:
    return [leaf.values if isinstance(leaf, KnownPart) else leaf for _, leaf in held.leaves]


def _is_true(verdict: Any) -> bool:
    __tracebackhide__ = True
    try:
        return bool(verdict)
    except Exception:
        raise CompareError(
            f"equal= returned {shown(verdict)}: it must return True or False, or raise an AssertionError"
        ) from None


def _structure(held: HeldResult) -> str:
    return f"{len(held.leaves)} values ({', '.join(path or 'the result' for path in held.paths[:5])})"


def _leaf_text(leaf: Any) -> str:
    return f"a tensor {shape_text(leaf.shape)}" if isinstance(leaf, KnownPart) else shown(leaf)
