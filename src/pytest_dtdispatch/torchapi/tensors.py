"""What tensors are: DTensors, their specs and local shards, results of collectives."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Placement
from torch.utils._pytree import tree_leaves

from pytest_dtdispatch.torchapi.shared_hook import SharedHook

WRAP = "_maybe_wrap_tensor"  # is given the output of each collective that Python runs


class TensorTraits(NamedTuple):
    """What the caches know of a tensor: ``placements`` is empty for a plain one.

    ``is_async``: the local shard comes from a collective that was not waited for; an op takes a longer way.
    """

    dtype: torch.dtype
    shape: Sequence[int]
    placements: Sequence[Placement]
    is_async: bool = False


def tensor_traits(value: Any) -> TensorTraits | None:
    """Describe a tensor, a DTensor, or the spec that stands for one in propagation; nothing else."""
    if isinstance(value, DTensor):
        is_async = isinstance(value._local_tensor, _async_type())
        return TensorTraits(value.dtype, value.shape, value.placements, is_async)
    if isinstance(value, torch.Tensor):
        return TensorTraits(value.dtype, value.shape, ())
    meta = getattr(value, "tensor_meta", None) if isinstance(value, spec_type()) else None
    return None if meta is None else TensorTraits(meta.dtype, meta.shape, value.placements)


def stride_of(value: Any) -> Sequence[int]:
    """Return the strides of a tensor, or of a spec that stands for one; none of a tensor without strides."""
    if isinstance(value, torch.Tensor):
        return value.stride() if value.layout is torch.strided else ()
    stride: Sequence[int] = value.tensor_meta.stride
    return stride


@functools.cache
def _collectives() -> Any:
    return importlib.import_module("torch.distributed._functional_collectives")


def _async_type() -> Any:
    return _collectives().AsyncCollectiveTensor


def wraps_dtensors(value: Any) -> bool:
    """Tell a tensor of a subclass that keeps DTensors in its attributes, as a pair of two tensors may."""
    plain = not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter)
    if plain or isinstance(value, DTensor):
        return False
    flatten = getattr(value, "__tensor_flatten__", None)
    names = [*vars(value), *(flatten()[0] if flatten else ())]
    inner = [getattr(value, name) for name in names]
    return any(isinstance(each, DTensor) or wraps_dtensors(each) for each in inner)


def mesh_among(leaves: Sequence[Any]) -> Any:
    """Find the mesh of the first DTensor, or of the first spec that stands for one; None if none."""
    for leaf in leaves:
        if isinstance(leaf, DTensor):
            return leaf.device_mesh
        if isinstance(leaf, spec_type()):
            return getattr(leaf.mesh, "real_obj", leaf.mesh)  # traced programs hold a stand-in for it
    return None


@functools.cache
def spec_type() -> Any:
    """Return the class of the objects that say where a DTensor lives."""
    return importlib.import_module("torch.distributed.tensor._dtensor_spec").DTensorSpec


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a DTensor, itself and no view of it; any other tensor as it is."""
    local: torch.Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local


def wrapped_with(context: Any) -> Sequence[Placement]:
    """Return the placements that autograd's context of ``from_local`` keeps, for its gradient."""
    names = ("grad_placements", "forward_input_placements", "previous_placement")
    return next((kept for name in names if (kept := getattr(context, name, None)) is not None), ())


def wait_for(result: Any) -> None:
    """Wait for the collectives that fill the tensors of a result, where the program has not yet.

    Torch keeps each of them until somebody waits for it, and counts those that nobody did at its end.
    """
    for tensor in _unwaited(tree_leaves(result)):
        tensor.trigger_wait()


def unwaited() -> int:
    """Count the collectives that torch keeps until somebody waits; 0 on a torch that does not count them."""
    count = getattr(getattr(torch._C, "_distributed_c10d", None), "_get_work_registry_size", None)
    return int(count()) if count else 0


def wait_for_all(outputs: list[torch.Tensor], result: Any = None) -> None:
    """Wait for the collectives that fill these tensors, which it takes from the list, and a result."""
    wait_for(result)
    while outputs:
        _collectives().wait_tensor(outputs.pop())


@contextmanager
def noting_collectives(outputs: list[torch.Tensor]) -> Iterator[None]:
    """Note the output of each collective that is run from Python, for a while; wait for what is left then."""

    def noted(inner: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def wrap(output: torch.Tensor) -> Any:
            outputs.append(output)
            return inner(output)

        return wrap

    with ExitStack() as hook:
        if hasattr(_collectives(), WRAP):
            hook.enter_context(SharedHook(_collectives(), WRAP, noted).in_place())
        try:
            yield
        finally:
            wait_for_all(outputs)


def release_of(result: Any) -> Callable[[Any], None] | None:
    """Return what results like this one must be given to before they are dropped; None if nothing."""
    return wait_for if next(_unwaited(tree_leaves(result)), None) is not None else None


def _unwaited(values: Iterable[Any]) -> Iterator[Any]:
    """Find tensors that a collective may not have filled yet, also inside of other tensors."""
    for value in values:
        if isinstance(value, _async_type()):
            yield value
        elif isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            yield from _unwaited(getattr(value, name) for name in names)


def shards_of_simulated_ranks(local: torch.Tensor) -> list[torch.Tensor]:
    """Return what each rank has where all are simulated in this process; else the tensor alone."""
    return list(getattr(local, "_local_tensors", {0: local}).values())
