"""What some versions and builds of torch lack or keep elsewhere, and what is said of it."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.errors import UnsupportedTorchError, first_message


def instruction_counter() -> Any:
    """Return what starts and ends the processor's counter of instructions; None where torch has nothing."""
    return getattr(torch._C, "_instruction_counter", None)


def cuda_driver_version() -> str:
    """Return the newest CUDA version that the driver takes, ``12.4``; empty where torch does not tell."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def sharded_tensors() -> Any:
    """Return the module of ``ShardedTensor``, which torch deprecates."""
    return importlib.import_module("torch.distributed._shard.sharded_tensor")


def split_over_ranks(world_size: int, device: str) -> Any:
    """Return the spec that splits a sharded tensor by its first dimension over all ranks."""
    specs = importlib.import_module("torch.distributed._shard.sharding_spec")
    devices = [device] if device == "cpu" else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    places = [f"rank:{rank}/{devices[rank % len(devices)]}" for rank in range(world_size)]
    return specs.ChunkShardingSpec(dim=0, placements=places)


def fully_shard() -> Any:
    """Find FSDP2's function, which was private before torch 2.6."""
    public = importlib.import_module("torch.distributed.fsdp")
    if hasattr(public, "fully_shard"):
        return public.fully_shard
    return importlib.import_module("torch.distributed._composable.fsdp").fully_shard


def foreach_add() -> Any:
    """Find the function that optimizers add lists of tensors with; its name starts with an underscore."""
    return torch._foreach_add


def two_tensor_type() -> Any:
    """Return the class of tensors that hold two, and apply every op to both."""
    return importlib.import_module("torch.testing._internal.two_tensor").TwoTensor


def flattened(mesh: Any) -> Any:
    """Make one dimension of all those of a mesh; None where torch cannot."""
    flatten = getattr(mesh, "_flatten", None)
    return flatten("_".join(mesh.mesh_dim_names)) if flatten else None


HOME = Path(__file__).parent
LOOKS_UP = ("__getattr__", "__getattribute__")  # a module or class of torch's own may look names up
OF_IMPORTS = Path(importlib.__file__).parent
FROZEN = "<frozen importlib"


def missing_name(error: BaseException | None) -> str:
    """Return what torch lacks, where an error says so: a file of this folder asked in vain for it.

    Returns:
        The line; empty where the error, and those that led to it, say something else.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, UnsupportedTorchError):
            return str(error)
        if isinstance(error, (AttributeError, ImportError)) and _is_from_torchapi(error):
            lacked = first_message(error)
            return f"torch {torch.__version__} lacks what is needed ({lacked}); torch 2.5 to 2.15 have it"
        error = error.__cause__ or error.__context__
    return ""


def _is_from_torchapi(error: BaseException) -> bool:
    """Return whether the innermost frame is one of ours, those left out that look names up."""
    for code in reversed([frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]):
        folder = Path(code.co_filename).parent
        is_import = code.co_filename.startswith(FROZEN) or folder == OF_IMPORTS
        if not is_import and code.co_name not in LOOKS_UP:
            return folder == HOME
    return False
