"""Whether variants give the same: results held against that of the first, leaf by leaf."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from pytest_dtdispatch.compare.model import Variants
from pytest_dtdispatch.core.text import escape_controls, shown
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
class Snapshot:
    """What a variant gave, as it was right after its call.

    Args:
        label: of the variant.
        leaves: what each leaf is, of tensors what this rank knows of them, by where it stands.
        spec: what puts leaves together again.
    """

    label: str
    leaves: dict[str, Any]
    spec: Any

    @classmethod
    def of(cls, label: str, result: Any) -> Snapshot:
        """Copy a result: a later variant may write to it."""
        leaves, spec = flatten(result)
        known = {path: known_part(leaf) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in leaves}
        return cls(label, known, spec)

    @property
    def values(self) -> list[Any]:
        """Every leaf, of tensors their values."""
        return [leaf.values if isinstance(leaf, KnownPart) else leaf for leaf in self.leaves.values()]

    def __str__(self) -> str:
        paths = ", ".join(path or "the result" for path in [*self.leaves][:5])
        return f"{self.label!r} gives {len(self.leaves)} values ({paths})"


class Reference:
    """What the first variant gave, which the others must give too."""

    def __init__(self, asked: Variants) -> None:
        self._asked = asked
        cuda = [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_initialized() else []
        self._random = RandomState(cuda)
        self._first: Snapshot | None = None

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
            held = Snapshot.of(label, result)
        if self._first is None:
            self._first = held
            return
        with without_outer_modes():
            against = self._against(self._first, held)
        if against:
            pair = escape_controls(f"{label!r} and {self._first.label!r}")
            has_tensors = any(isinstance(leaf, KnownPart) for leaf in held.leaves.values())
            hint = FAKE_HINT if has_tensors and is_group_fake() else ""
            raise UnequalError(
                f"compare {self._asked.name!r}: the results of {pair} are not equal: {against}{hint}"
            )

    def _against(self, first: Snapshot, other: Snapshot) -> str:
        """Say what makes two results unequal; empty where they are equal."""
        __tracebackhide__ = True
        if self._asked.equal is None:
            return difference(first, other)
        results = _plain(first, other)
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


def difference(first: Snapshot, other: Snapshot) -> str:
    """Say where two results differ first, and by how much; empty where they are equal bit for bit."""
    if [*first.leaves] != [*other.leaves]:
        return f"{first}, and {other}"
    for path, one in first.leaves.items():
        if text := _leaf_difference(one, other.leaves[path]):
            return f"at result{path}, {text}" if path else text
    return ""


def _leaf_difference(first: Any, other: Any) -> str:
    if isinstance(first, KnownPart) and isinstance(other, KnownPart):
        return _tensor_difference(first, other)
    if isinstance(first, KnownPart) or isinstance(other, KnownPart):
        return f"{_leaf_text(other)} is not {_leaf_text(first)}"
    try:
        is_equal = first is other or bool(first == other) or bool(first != first and other != other)
    except Exception as error:  # what the users' own classes raise
        return f"a {type(first).__name__} cannot be compared ({type(error).__name__}): give equal="
    return "" if is_equal else f"{shown(other)} is not {shown(first)}"


def _tensor_difference(first: KnownPart, other: KnownPart) -> str:
    kinds = [f"{dtype_text(part.values.dtype)}{shape_text(part.shape)}" for part in (first, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[1]} is not {kinds[0]}"
    expected, actual = common(first, other)
    if torch.equal(_bits(expected), _bits(actual)):
        return ""
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return "their bytes alone differ, as those of -0.0 and 0.0 do"


def _bits(values: torch.Tensor) -> torch.Tensor:
    """View the elements of a tensor as bytes."""
    return values.contiguous().reshape(-1, 1).view(torch.uint8)


def _plain(first: Snapshot, other: Snapshot) -> tuple[Any, Any]:
    """Return two results with plain tensors, cut to what is known of both where one is known in part."""
    ours, theirs = first.values, other.values
    if [*first.leaves] == [*other.leaves]:
        for number, (path, one) in enumerate(first.leaves.items()):
            another = other.leaves[path]
            both = isinstance(one, KnownPart) and isinstance(another, KnownPart)
            if both and one.shape == another.shape:
                ours[number], theirs[number] = common(one, another)
    return unflatten(ours, first.spec), unflatten(theirs, other.spec)


def _is_true(verdict: Any) -> bool:
    __tracebackhide__ = True
    try:
        return bool(verdict)
    except Exception:
        raise CompareError(
            f"equal= returned {shown(verdict)}: it must return True or False, or raise an AssertionError"
        ) from None


def _leaf_text(leaf: Any) -> str:
    return f"a tensor {shape_text(leaf.shape)}" if isinstance(leaf, KnownPart) else shown(leaf)
