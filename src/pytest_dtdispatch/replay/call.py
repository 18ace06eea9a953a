"""Dispatch modes of this plugin, and calls of conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.torchapi.calls import CallArguments
from pytest_dtdispatch.torchapi.observe import Conversion, Converter
from pytest_dtdispatch.torchapi.ops import TorchDispatchMode, close_modes_opened_since, open_modes
from pytest_dtdispatch.torchapi.signatures import dtype_text, placements_text, shape_text, tensor_text
from pytest_dtdispatch.torchapi.tensors import tensor_traits, wrapped_with

if TYPE_CHECKING:
    from typing_extensions import Self

__tracebackhide__ = True  # a failing test shows its own line


class UnnoticedMode(TorchDispatchMode):
    """Base of this plugin's dispatch modes: compiled code stays compiled, and higher-order operators run.

    If a signal arrives while a mode is opened or closed, the mode is closed.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outer: list[Any] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: compiled code stays compiled under an infra mode."""
        return True

    def __enter__(self) -> Self:
        self._outer = open_modes()
        try:
            with Signals():
                self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            with Signals():
                left_open = self._close()
        except BaseException:  # a signal may arrive before they are deferred
            self._close()
            raise
        self._closed(left_open, exception[0] is not None)

    def _open(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]

    def _closed(self, left_open: list[str], has_raised: bool) -> None:
        """Handle the names of modes that were opened inside and left open."""

    def _close(self) -> list[str]:
        """Close modes that were opened inside and left open, then this one; return names of the former."""
        if not any(mode is self for mode in open_modes()):
            return []
        left_open = close_modes_opened_since([*self._outer, self])
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return left_open


class RepetitionContext:
    """Replacement of the context of an autograd function in a repetition.

    Attributes are read from the context of the program's own call, and written to this object.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def save_for_backward(self, *args: Any) -> None:
        """No-op: the program's own call already registered this with autograd."""

    set_materialize_grads = mark_dirty = mark_non_differentiable = save_for_backward


class ConversionCall(CallArguments):
    """A call of a conversion.

    Args:
        converter: kind and name of the conversion.
        function: function of torch that converts.
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        name: name in signatures, such as ``redistribute`` or ``to_local_backward``.
        tensor: converted tensor; None if autograd has no gradient for it.
    """

    def __init__(
        self,
        converter: Converter,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        super().__init__(args, kwargs)
        self.converter, self.function = converter, function
        self.name = f"{converter.name}_backward" if converter.is_backward else converter.name
        self.tensor: torch.Tensor | None = next(iter(self.tensors), None)

    def arguments_of_repetition(self) -> tuple[Any, ...]:
        """Return the positional arguments, with a replaced context so that the program's is unchanged."""
        if not self.args or isinstance(self.args[0], torch.Tensor):
            return self.args
        return (RepetitionContext(self.args[0]), *self.args[1:])

    def signature(self, result: Any) -> Signature:
        """Return the signature: source, result and mesh."""
        source = self.tensor
        target = result[0] if isinstance(result, tuple) else result
        mesh = next(each.device_mesh for each in (target, source) if isinstance(each, DTensor))
        traits = tensor_traits(source)
        text = tensor_text(traits) if traits else ""
        placements = self._target_text(source, target)
        if placements:
            text = f"{text} -> {placements}"
        # Positional arguments that distinguish conversions in addition to tensor, mesh and placements.
        positions = {"from_local": {4: "run_check", 5: "shape"}, "redistribute": {4: "async_op"}}
        texts = [text]
        for number, name in positions.get(self.name, {}).items():
            value = self.args[number] if number < len(self.args) else None
            if value:
                texts.append(f"{name}={shape_text(value) if isinstance(value, Sequence) else value}")
        return Signature(self.name, tuple(texts), tuple(mesh.shape), mesh.device_type)

    def _target_text(self, source: Any, target: Any) -> str:
        """Return the placements of the result as text; empty if a DTensor is unwrapped without change."""
        if isinstance(target, DTensor):
            placements = placements_text(target.placements)
            is_cast = target.dtype != source.dtype
            return f"{dtype_text(target.dtype)} {placements}" if is_cast else placements
        if self.converter.kind is Conversion.UNWRAP and self.converter.is_backward:
            before = wrapped_with(self.args[0])
            return placements_text([Replicate() if isinstance(each, Partial) else each for each in before])
        return ""
