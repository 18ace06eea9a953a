"""An op call, or a conversion, that a program makes: how it is named, and how it is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.rounds.signals import Signals
from pytest_dtdispatch.torchapi.observe import Conversion, Converter
from pytest_dtdispatch.torchapi.ops import (
    TorchDispatchMode,
    arguments_of,
    below_modes,
    close_modes_opened_since,
    is_op,
    is_written,
    leaves_of,
    op_name,
    open_modes,
    returns_of,
    tree_leaves,
)
from pytest_dtdispatch.torchapi.tensors import TensorTraits, mesh_among, tensor_traits, wrapped_with

if TYPE_CHECKING:
    from typing_extensions import Self

__tracebackhide__ = True  # a test that fails here shows its own line


class OpCall(NamedTuple):
    """An op with the arguments that a program called it with."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Make the call, as if no mode had been open."""
        with below_modes(self.func):
            return self.func(*self.args, **self.kwargs)

    def leaves(self) -> list[Any]:
        """Every argument, lists of tensors flattened."""
        return leaves_of(self.args, self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """Tensors that the op's schema says it writes to."""
        values = [value for argument, value in arguments_of(*self) if is_written(argument)]
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]

    def why_not_repeatable(self) -> str:
        """Return why the call cannot be repeated, judged by its schema and tags; empty where it can."""
        if not is_op(self.func):
            return "a higher-order operator runs once"
        if torch.Tag.inplace_view in self.func.tags:
            return "runs once: it changes a tensor's shape in place"
        if not returns_of(self.func) and not self.written():
            return "runs once: its effect is outside its tensors"
        return ""


def has_dtensor(leaves: list[Any]) -> bool:
    """Return whether there is a DTensor among the arguments of a call."""
    return any(isinstance(leaf, DTensor) for leaf in leaves)


class UnnoticedMode(TorchDispatchMode):
    """What our dispatch modes have in common: compiled code stays compiled, higher-order operators run.

    A signal that comes while one is opened or closed leaves none of them open.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outer: list[Any] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Leave compiled code compiled."""
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
        except BaseException:  # it may have come before signals were held back
            self._close()
            raise
        self._closed(left_open, exception[0] is not None)

    def _open(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]

    def _closed(self, left_open: list[str], has_raised: bool) -> None:
        """Look at what was opened inside and left open, once it is closed."""

    def _close(self) -> list[str]:
        """Close it, and first what was opened inside and left open; return the names of that."""
        if not any(mode is self for mode in open_modes()):
            return []
        left_open = close_modes_opened_since([*self._outer, self])
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return left_open


# How signatures write dtypes.
DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
}


def signature_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Signature:
    """Describe an op call on DTensors, or on the specs that stand for them in propagation.

    Tensors are shown by dtype, global shape and placements. Integers, flags and dtypes that differ from
    the op's defaults are shown too, by name: they select another plan of propagation, so that without
    them two different calls would share a row. Scalars are not: a learning rate is no other op.
    """
    mesh = mesh_among(leaves_of(args, kwargs))
    texts = (_argument_text(*each) for each in arguments_of(func, args, kwargs))
    shown = tuple(text for text in texts if text is not None)
    return Signature(op_name(func), shown, tuple(mesh.shape), mesh.device_type)


def _argument_text(argument: Any, value: Any) -> str | tuple[str, ...] | None:
    tensor = tensor_traits(value)
    if tensor is not None:
        return tensor_text(tensor)
    if isinstance(value, (list, tuple)) and any(map(tensor_traits, value)):
        tensors = map(tensor_traits, value)
        return tuple("-" if tensor is None else tensor_text(tensor) for tensor in tensors)
    if value == argument.default_value or not _selects_a_plan(argument, value):
        return None
    is_shape = isinstance(value, (list, tuple))
    text = shape_text(value) if is_shape else dtype_text(value) if isinstance(value, torch.dtype) else value
    return f"{argument.name}={text}"


def _selects_a_plan(argument: Any, value: Any) -> bool:
    if isinstance(value, (torch.dtype, str)):
        return True
    kind = str(argument.type)
    if "int" not in kind and "Int" not in kind and kind != "bool":
        return False
    if isinstance(value, (list, tuple)):
        return all(type(item) is int for item in value)
    return type(value) is int or value is True


def dtype_text(dtype: torch.dtype) -> str:
    """Abbreviate a dtype: ``torch.float32`` is ``f32``."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def tensor_text(tensor: TensorTraits) -> str:
    """Write a tensor as dtype, global shape and, of a DTensor, placements: ``f32[512,512]S0``.

    Where its local shard came from a collective that was not waited for, ``async`` follows.
    """
    text = f"{dtype_text(tensor.dtype)}{shape_text(tensor.shape)}{placements_text(tensor.placements)}"
    return f"{text} async" if tensor.is_async else text


def shape_text(shape: Sequence[Any]) -> str:
    """Write a shape or a stride: ``[512,512]``."""
    return f"[{','.join(map(str, shape))}]"


def placements_text(placements: Sequence[Any]) -> str:
    """Write placements, one for each mesh dimension: ``S0R``."""
    return "".join(map(placement_text, placements))


def placement_text(placement: Any) -> str:
    """Write a placement: ``S0`` for Shard(0), ``R`` for Replicate, ``P`` for a partial sum, ``P(max)``."""
    if type(placement) is Shard:
        return f"S{placement.dim}"
    if type(placement) is Replicate:
        return "R"
    if type(placement) is Partial:
        return "P" if placement.reduce_op == "sum" else f"P({placement.reduce_op})"
    return f"<{placement}>"


def redistribution_text(source: Any, target: Any) -> str:
    """Write how a redistribution changes a tensor, or a spec that stands for it: ``f32[8,8]S0 -> R``."""
    traits = tensor_traits(source)
    before = tensor_text(traits) if traits else placements_text(source.placements)
    return f"{before} -> {placements_text(target.placements)}"


# Arguments that make another call of it, beside its tensor, mesh and placements: by function, place and name.
NAMED_ARGUMENTS = {"from_local": {4: "run_check", 5: "shape"}, "redistribute": {4: "async_op"}}


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
        values = (*self.args, *self.kwargs.values())
        return next((each for each in values if isinstance(each, torch.Tensor)), None)

    def again(self) -> tuple[Any, ...]:
        """Return the arguments of a repetition."""
        if not self.args or isinstance(self.args[0], torch.Tensor):
            return self.args
        return (ContextStandIn(self.args[0]), *self.args[1:])

    def signature(self, result: Any) -> Signature:
        """Name what was converted to what, and where."""
        source = self.tensor
        made = result[0] if isinstance(result, tuple) else result
        mesh = next(each.device_mesh for each in (made, source) if isinstance(each, DTensor))
        traits = tensor_traits(source)
        text = tensor_text(traits) if traits else ""
        if target := self._target(source, made):
            text = f"{text} -> {target}"
        named = NAMED_ARGUMENTS.get(self.name, {})
        values = [(named[number], value) for number, value in enumerate(self.args) if number in named]
        others = [f"{name}={shape_text(v) if isinstance(v, Sequence) else v}" for name, v in values if v]
        return Signature(self.name, (text, *others), tuple(mesh.shape), mesh.device_type)

    def _target(self, source: Any, made: Any) -> str:
        """Write where the result lives; nothing of a local tensor that is just taken out."""
        if isinstance(made, DTensor):
            dtype = f"{dtype_text(made.dtype)} " * (made.dtype != source.dtype)
            return f"{dtype}{placements_text(made.placements)}"
        if self.converter.kind is Conversion.UNWRAP and self.converter.is_backward:
            placements = wrapped_with(self.args[0])
            whole = (Replicate() if isinstance(each, Partial) else each for each in placements)
            return placements_text(tuple(whole))
        return ""
