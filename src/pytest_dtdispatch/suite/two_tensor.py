"""A tensor that holds two and applies every op to both: the least that a tensor subclass can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_dtdispatch.torchapi import names as torchapi


class TwoTensor(torch.Tensor):
    """Two tensors of one shape.

    Example:
        >>> both = TwoTensor(torch.ones(2), torch.zeros(2)) + 1
        >>> both.first.tolist(), both.second.tolist()
        ([2.0, 2.0], [1.0, 1.0])
    """

    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def __new__(
        cls: type[TwoTensor],
        first: torch.Tensor,
        second: torch.Tensor,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> TwoTensor:
        """Make a tensor without storage of its own."""
        made: TwoTensor = torchapi.empty_wrapper(
            cls, first, first.shape if shape is None else shape, first.stride() if stride is None else stride
        )
        return made

    def __init__(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> None:
        self.first = first
        self.second = second

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TwoTensor({self.first!r}, {self.second!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], meta: None, shape: Sequence[int], stride: Sequence[int]
    ) -> TwoTensor:
        return TwoTensor(inner["first"], inner["second"], shape, stride)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = (args, kwargs or {})
        first_args, first_kwargs = torchapi.tree_map(_first, given)
        second_args, second_kwargs = torchapi.tree_map(_second, given)
        first, second = func(*first_args, **first_kwargs), func(*second_args, **second_kwargs)
        result = torchapi.tree_map(_joined, first, second)
        return torchapi.with_aliases(func, *given, result)


def _first(value: Any) -> Any:
    return value.first if isinstance(value, TwoTensor) else value


def _second(value: Any) -> Any:
    return value.second if isinstance(value, TwoTensor) else value


def _joined(first: Any, second: Any) -> Any:
    """Join two results; what is no tensor is taken to be equal in both."""
    return TwoTensor(first, second) if isinstance(first, torch.Tensor) else first
