"""A conversion that a program asks for: how it is named, and how it is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.measuring.op_call import dtype_text, placements_text, shape_text, tensor_text
from pytest_dtdispatch.torchapi.conversions import Conversion, Converter
from pytest_dtdispatch.torchapi.ops import leaves_of
from pytest_dtdispatch.torchapi.tensors import tensor_traits, wrapped_with

# Arguments that make another call of it, beside its tensor, mesh and placements: by function, place and name.
TELLING = {
    "from_local": ((4, "run_check"), (5, "shape")),
    "redistribute": ((4, "async_op"),),
}


class ContextStandIn:
    """Stands in for what autograd gives its functions to keep things in, in a repetition.

    It reads what the program's own call keeps there, and keeps what the repetition writes to itself.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def _keep_nothing(self, *args: Any) -> None:
        """Tell autograd nothing: the program's own call has."""

    set_materialize_grads = save_for_backward = mark_dirty = mark_non_differentiable = _keep_nothing


@dataclass(frozen=True)
class ConversionCall:
    """A function of torch that converts, with what it is called with."""

    converter: Converter
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name it as ops are named: ``redistribute``, ``to_local_backward``."""
        return f"{self.converter.name}{'_backward' * self.converter.is_backward}"

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor that is converted; None where autograd has no gradient for it."""
        given = (*self.args, *self.kwargs.values())
        return next((each for each in given if isinstance(each, torch.Tensor)), None)

    def run(self) -> Any:
        """Make the call for the program."""
        __tracebackhide__ = True
        return self.function(*self.args, **self.kwargs)

    def again(self) -> tuple[Any, ...]:
        """Give the arguments of a repetition."""
        if not self.args or isinstance(self.args[0], torch.Tensor):
            return self.args
        return (ContextStandIn(self.args[0]), *self.args[1:])

    def leaves(self) -> list[Any]:
        """Every argument, lists of tensors flattened."""
        return leaves_of(self.args, self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """Tensors whose contents must be put back: none, as the first call leaves what all others do."""
        return []

    def signature(self, result: Any) -> Signature:
        """Name what was converted to what, and where."""
        source = self.tensor
        made = result[0] if isinstance(result, tuple) else result
        mesh = next(each.device_mesh for each in (made, source) if isinstance(each, DTensor))
        traits = tensor_traits(source)
        text = tensor_text(traits) if traits else ""
        if target := self._target(source, made):
            text = f"{text} -> {target}"
        return Signature(self.name, (text, *self._told()), tuple(mesh.shape), mesh.device_type)

    def _target(self, source: Any, made: Any) -> str:
        """Write where the result lives; nothing of a local tensor that is just taken out."""
        if isinstance(made, DTensor):
            dtype = f"{dtype_text(made.dtype)} " * (made.dtype != source.dtype)
            return f"{dtype}{placements_text(made.placements)}"
        if self.converter.what is Conversion.UNWRAP and self.converter.is_backward:
            placements = wrapped_with(self.args[0])
            whole = (Replicate() if isinstance(each, Partial) else each for each in placements)
            return placements_text(tuple(whole))
        return ""

    def _told(self) -> Sequence[str]:
        """Write arguments that make it another call."""
        texts = []
        for place, name in TELLING.get(self.name, ()):
            if value := self.args[place] if len(self.args) > place else None:
                texts.append(f"{name}={shape_text(value) if isinstance(value, Sequence) else value}")
        return texts
