"""Write an op call as a signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from pytest_dtdispatch.core.results import Signature
from pytest_dtdispatch.torchapi.op_schemas import Argument, arguments_of, leaves_of, op_name
from pytest_dtdispatch.torchapi.tensors import TensorTraits, mesh_among, tensor_traits

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
    shown = []
    for argument in arguments_of(func, args, kwargs):
        text = _argument_text(argument)
        if text is not None:
            shown.append(text)
    return Signature(op_name(func), tuple(shown), tuple(mesh.shape), mesh.device_type)


def _argument_text(argument: Argument) -> str | tuple[str, ...] | None:
    value = argument.value
    tensor = tensor_traits(value)
    if tensor is not None:
        return tensor_text(tensor)
    if isinstance(value, (list, tuple)) and any(map(tensor_traits, value)):
        tensors = map(tensor_traits, value)
        return tuple("-" if tensor is None else tensor_text(tensor) for tensor in tensors)
    if value == argument.default or not _selects_a_plan(argument):
        return None
    return f"{argument.name}={_value_text(value)}"


def _selects_a_plan(argument: Argument) -> bool:
    value = argument.value
    if isinstance(value, (torch.dtype, str)):
        return True
    if "int" not in argument.type and "Int" not in argument.type and argument.type != "bool":
        return False
    if isinstance(value, (list, tuple)):
        return all(type(item) is int for item in value)
    return type(value) is int or value is True


def _value_text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return dtype_text(value)
    return shape_text(value) if isinstance(value, (list, tuple)) else str(value)


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
    return "[" + ",".join(str(extent) for extent in shape) + "]"


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
