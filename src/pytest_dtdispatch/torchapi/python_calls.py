"""Calls of ops in Python, as scripts build them."""

from __future__ import annotations

import re
from traceback import walk_stack
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.tensors import PLAIN_TYPES, DTensorSpec, is_tensor, local_of


def call_in_python(call: OpCall) -> dict[str, str]:
    """Return parts of a script that builds a call; text in angle brackets marks what it cannot build.

    Tensors have numbers, shapes, strides and placements, but no values. ``frames`` is the size of the stack,
    which a miss records: a file on it takes as long as another frame, as torch checks it for changes.
    Empty on a mesh without this rank, for example. Errors of a signal handler are raised.
    """
    try:
        return _parts(call)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return {}


def _parts(call: OpCall) -> dict[str, str]:
    mesh, func = call.mesh, call.func
    op = f"<the values for {func}>" if _depends_on_values(call) else f"torch.ops.{func}"
    numbers = {each: number for number, each in enumerate(dict.fromkeys(map(id, call.tensors)))}
    kwargs = [f"{name}={_python(value, mesh, numbers)}" for name, value in call.kwargs.items()]
    files = [frame.f_code.co_filename for frame, _ in walk_stack(None)]
    max_frames = 800  # of Python's limit of 1,000 frames; a miss needs about 100
    return {
        "call": ", ".join([op, *(_python(value, mesh, numbers) for value in call.args), *kwargs]),
        "group": f"rank={mesh.mesh.flatten().tolist().index(mesh.get_rank())}, world_size={mesh.size()}",
        "mesh": f"{mesh.device_type!r}, {tuple(mesh.shape)}, mesh_dim_names={mesh.mesh_dim_names}",
        "frames": str(min(len(files) + len({*files}), max_frames)),
    }


def _depends_on_values(call: OpCall) -> bool:
    """Return whether the values of a tensor determine the shape of a result, or of values to write."""
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*call.func.tags}:
        return True
    arguments = {argument.name: value for argument, value in call.named()}
    indices = arguments["indices"] if "index_put" in call.func.name() else ()
    dtypes = {each.dtype for each in indices if is_tensor(each)}
    return bool(dtypes & {torch.bool, torch.uint8}) and arguments["values"].numel() > 1  # of a mask


def _python(value: Any, mesh: Any, numbers: dict[int, int]) -> str:
    if is_tensor(value):
        return _tensor(value, mesh, numbers[id(value)])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_python(each, mesh, numbers) for each in value)}]"
    return ask(repr, value, "<a value without a text>")


def _tensor(tensor: Any, mesh: Any, number: int) -> str:
    local, spec = local_of(tensor), getattr(tensor, "_spec", None)
    kinds = {type(tensor), type(local), *map(type, spec.placements if spec else ())}
    rebuilt = {DTensor, *PLAIN_TYPES, Shard, Replicate, Partial, _StridedShard}
    if kinds - rebuilt or local.device.type != mesh.device_type or local.layout is not torch.strided:
        return f"<a {type(local).__name__} on {local.device} in a {type(tensor).__name__}: {spec}>"
    if local.is_conj() or local.is_neg():
        return "<a view of conjugated or negated elements>"
    # A view may leave a spec that treats strided shards in another way.
    if spec and (spec.shape != tensor.shape or spec != DTensorSpec(mesh, spec.placements, spec.tensor_meta)):
        return "<a DTensor on another mesh, or with a spec that DTensor.from_local does not create>"
    parts = [number, local.dtype, tuple(local.shape), local.stride()]
    parts += [[*spec.placements], tuple(spec.shape), tuple(spec.stride)] if spec else []
    # Indices of a dimension of size 1 are zeros, and divisors are not.
    parts += ["value=0"] if local.dtype in (torch.int32, torch.int64) and bool((local == 0).any()) else []
    text = ", ".join(map(str, parts))
    return re.sub(r"Partial\((\w+)\)", r"Partial('\1')", f"tensor({text})").replace("sf=", "split_factor=")
