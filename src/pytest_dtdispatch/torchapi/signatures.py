"""Signatures of calls, and texts of tensors, shapes and placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.torchapi.calls import ConversionCall, OpCall
from pytest_dtdispatch.torchapi.observe import Conversion
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.tensors import (
    TensorTraits,
    actual_traits,
    is_dtensor,
    tensor_traits,
    wrapped_with,
)

# Abbreviations of dtypes in signatures.
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


def signature_of(call: OpCall) -> Signature:
    """Return the signature of an op call on DTensors, or on their specs in propagation.

    Tensors have dtype, global shape and placements. Integers, flags and dtypes that differ from the defaults
    of the op have their name: they select another plan of propagation, so that different calls would share a
    row without them. Scalars are omitted: the value of a learning rate does not change the plan.
    """
    texts = (_argument_text(argument, value) for argument, value in call.named())
    shown = tuple(text for text in texts if text is not None)
    mesh = call.mesh
    return Signature(op_name(call.func), shown, tuple(mesh.shape), mesh.device_type)


def signature_of_conversion(call: ConversionCall, result: Any) -> Signature:
    """Return the signature of a conversion: source, result and mesh."""
    source = call.tensor
    target = result[0] if isinstance(result, tuple) else result
    mesh = next(each.device_mesh for each in (target, source) if isinstance(each, DTensor))
    traits = tensor_traits(source)
    text = tensor_text(traits) if traits else ""
    placements = ""  # empty if a DTensor is unwrapped without change
    if isinstance(target, DTensor):
        cast = f"{dtype_text(target.dtype)} " if target.dtype != source.dtype else ""
        placements = f"{cast}{placements_text(target.placements)}"
    elif call.converter.kind is Conversion.UNWRAP and call.converter.is_backward:
        before = wrapped_with(call.args[0])
        placements = placements_text([Replicate() if isinstance(each, Partial) else each for each in before])
    if placements:
        text = f"{text} -> {placements}"
    # Positional arguments that distinguish conversions in addition to tensor, mesh and placements.
    positions = {"from_local": {4: "run_check", 5: "shape"}, "redistribute": {4: "async_op"}}
    texts = [text]
    for number, name in positions.get(call.name, {}).items():
        value = call.args[number] if number < len(call.args) else None
        if value:
            texts.append(f"{name}={shape_text(value) if isinstance(value, Sequence) else value}")
    return Signature(call.name, tuple(texts), tuple(mesh.shape), mesh.device_type)


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


def spec_notes(leaves: Sequence[Any]) -> tuple[str, ...]:
    """Return a note for each DTensor among the arguments of a call that its spec contradicts."""
    notes: dict[str, None] = {}
    for tensor in filter(is_dtensor, leaves):
        actual, planned = actual_traits(tensor), tensor_traits(tensor)
        if planned is not None and planned[:2] != (actual.dtype, tuple(actual.shape)):
            by_spec = f"{tensor_text(actual)} has a spec of {tensor_text(planned)}, by which torch plans"
            notes[f"{by_spec}: `.data =` changes the tensor, and not its spec"] = None
    return tuple(notes)


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
    """Return dtype, global shape and, for a DTensor, placements: ``f32[512,512]S0``.

    ``async`` is appended if its local shard is the output of a collective that was not waited for.
    """
    text = f"{dtype_text(tensor.dtype)}{shape_text(tensor.shape)}{placements_text(tensor.placements)}"
    return f"{text} async" if tensor.is_async else text


def spec_text(tensor: Any) -> str:
    """Format dtype and global shape of a tensor or a spec."""
    traits = tensor_traits(tensor)
    return f"{dtype_text(traits.dtype)}{shape_text(traits.shape)}" if traits else ""


def shape_text(shape: Sequence[Any]) -> str:
    """Return a shape or a stride as text: ``[512,512]``."""
    return f"[{','.join(map(str, shape))}]"


def placements_text(placements: Sequence[Any]) -> str:
    """Return placements as text, one for each mesh dimension: ``S0R``."""
    return "".join(map(placement_text, placements))


def placement_text(placement: Any) -> str:
    """Return ``S0`` for Shard(0), ``R`` for Replicate, ``P`` for a partial sum, ``P(max)`` for a maximum."""
    if type(placement) is Shard:
        return f"S{placement.dim}"
    if type(placement) is Replicate:
        return "R"
    if type(placement) is Partial:
        return "P" if placement.reduce_op == "sum" else f"P({placement.reduce_op})"
    return f"<{placement}>"


def redistribution_text(source: Any, target: Any) -> str:
    """Format a redistribution of a tensor or a spec: ``f32[8,8]S0 -> R``."""
    traits = tensor_traits(source)
    before = tensor_text(traits) if traits else placements_text(source.placements)
    return f"{before} -> {placements_text(target.placements)}"
