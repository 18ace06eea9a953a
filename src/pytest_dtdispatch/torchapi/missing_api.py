"""Names that some torch versions or builds lack or have elsewhere, and the error for a missing name."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.errors import UnsupportedTorchError, first_message


def instruction_counter() -> Any:
    """Return torch's interface to the processor's instruction counter, or None."""
    return getattr(torch._C, "_instruction_counter", None)


def cuda_driver_version() -> str:
    """Return the newest CUDA version that the driver supports, as ``12.4``; empty if unknown."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def sharded_tensors() -> Any:
    """Return the module of ``ShardedTensor``, which is deprecated."""
    return importlib.import_module("torch.distributed._shard.sharded_tensor")


def split_over_ranks(world_size: int, device: str) -> Any:
    """Return the spec of a sharded tensor that is split along its first dimension over all ranks."""
    specs = importlib.import_module("torch.distributed._shard.sharding_spec")
    devices = [device] if device == "cpu" else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    placements = [f"rank:{rank}/{devices[rank % len(devices)]}" for rank in range(world_size)]
    return specs.ChunkShardingSpec(dim=0, placements=placements)


def fully_shard() -> Any:
    """Return FSDP2's ``fully_shard``, which was private before torch 2.6."""
    public = importlib.import_module("torch.distributed.fsdp")
    if hasattr(public, "fully_shard"):
        return public.fully_shard
    return importlib.import_module("torch.distributed._composable.fsdp").fully_shard


def foreach_add() -> Any:
    """Return the function by which optimizers add lists of tensors; its name is private."""
    return torch._foreach_add


def coalesced_collectives() -> dict[str, Any]:
    """Return functional collectives of lists of plain tensors over a mesh of one dimension, by name."""
    functional = importlib.import_module("torch.distributed._functional_collectives")
    # all_gather_into_tensor_coalesced is deprecated since torch 2.13.
    gather = getattr(functional, "all_gather_single_coalesced", None)

    def all_reduce(tensors: Any, mesh: Any) -> Any:
        return functional.all_reduce_coalesced(tensors, "sum", mesh)

    return {"all_reduce": all_reduce, "all_gather": gather or functional.all_gather_into_tensor_coalesced}


def two_tensor_type() -> Any:
    """Return the tensor subclass that has two tensors and applies each op to both."""
    return importlib.import_module("torch.testing._internal.two_tensor").TwoTensor


def flattened(mesh: Any) -> Any:
    """Flatten a mesh into one dimension; return None if this torch cannot."""
    flatten = getattr(mesh, "_flatten", None)
    return flatten("_".join(mesh.mesh_dim_names)) if flatten else None


def missing_name(error: BaseException | None) -> str:
    """Return a message if this folder raised an error, or one of its causes, because torch lacks a name.

    Returns:
        One line; empty for all other errors.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, UnsupportedTorchError):
            return str(error)
        if isinstance(error, (AttributeError, ImportError)) and _is_from_torchapi(error):
            reason = first_message(error)
            return f"torch {torch.__version__} lacks a required name ({reason}); torch 2.5 to 2.15 have it"
        error = error.__cause__ or error.__context__
    return ""


def _is_from_torchapi(error: BaseException) -> bool:
    """Return whether the innermost frame is in this folder, ignoring attribute lookups and imports."""
    importlib_folder = Path(importlib.__file__).parent
    for code in reversed([frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]):
        folder = Path(code.co_filename).parent
        is_import = code.co_filename.startswith("<frozen importlib") or folder == importlib_folder
        if not is_import and code.co_name not in ("__getattr__", "__getattribute__"):
            return folder == Path(__file__).parent
    return False
