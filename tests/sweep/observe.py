"""Observable state of tensors and generators, as plain data to compare."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.tensors import local_of, random_tracker_states

SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def contents(tensor: torch.Tensor) -> Any:
    """Return the contents of a tensor as bits, so that NaN equals itself."""
    local = settled(tensor)
    if local.layout in SPARSE:
        return [contents(getattr(local, part)()) for part in SPARSE[local.layout]]
    if local.is_nested:
        return [contents(part) for part in local.unbind()]
    if local.layout is not torch.strided:
        return contents(local.to_dense())
    if local.is_quantized:
        return local.int_repr().numpy().tobytes(), str(local.qscheme())
    packed = torch.empty(local.shape, dtype=local.dtype).copy_(local.resolve_conj().resolve_neg())
    return bytes(packed.view(-1).view(torch.uint8).numpy().data) if packed.numel() else b""


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local tensor outside autograd, after waiting for a pending collective."""
    local = local_of(tensor).detach()
    waited = getattr(local, "wait", None)
    return waited() if callable(waited) else local


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the layout of a tensor: kinds, dtype, shapes, placements, local strides and offset."""
    local = local_of(tensor)
    placements = tuple(map(str, tensor.placements)) if isinstance(tensor, DTensor) else ()
    outer = (type(tensor), tensor.dtype, _plain(tensor.shape), placements)
    if local.layout is not torch.strided or local.is_nested:
        return (*outer, type(local), str(local.layout), _plain(local.shape))
    lazy = (local.is_conj(), local.is_neg())
    strides = (tensor.stride(), local.stride(), local.storage_offset())
    return (*outer, type(local), local.dtype, _plain(local.shape), strides, lazy)


def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a leaf; torch warns if the tensor is not a leaf."""
    return tensor.grad if tensor.is_leaf else None


def seen(value: Any) -> Any:
    """Return the observable state of a value."""
    if isinstance(value, torch.Generator):
        return state_of(value.get_state())
    if not isinstance(value, torch.Tensor):
        return without_addresses(repr(value))
    return {
        "contents": contents(value),
        "layout": layout(value),
        "versions": () if value.is_inference() else (value._version, local_of(value)._version),
        "autograd": (value.requires_grad, value.is_leaf, type(value.grad_fn).__name__, value._is_view()),
        "grad": seen(gradient(value)),
    }


def aliases(values: Sequence[Any]) -> list[tuple[int, int, bool]]:
    """Return which values share a storage, and which are the same object."""
    storages = {n: address for n, value in enumerate(values) if (address := _address(value))}
    return [
        (i, j, values[i] is values[j])
        for i in storages
        for j in storages
        if i < j and (storages[i] == storages[j] or values[i] is values[j])
    ]


def random_state() -> list[bytes]:
    """Return the random states of torch and of DTensor's tracker."""
    tracked = sorted(random_tracker_states().items())
    return [state_of(torch.get_rng_state()), *(state_of(state) for _, state in tracked)]


def state_of(state: torch.Tensor) -> bytes:
    """Return the state of a generator."""
    return bytes(state.numpy().data)


def without_addresses(text: str) -> str:
    """Return a message without addresses, which differ between processes and objects."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def living() -> Counter[str]:
    """Count live tensors that were created after the last ``gc.freeze()``.

    Fake tensors of shape propagation are excluded: torch leaves them in reference cycles.
    """
    tensors = (value for value in gc.get_objects() if issubclass(type(value), torch.Tensor))
    return Counter(type(tensor).__name__ for tensor in tensors if not _is_fake(tensor))


def _is_fake(tensor: torch.Tensor) -> bool:
    is_fake = "Fake" in type(tensor).__name__ or tensor.device.type == "meta"
    return is_fake or (isinstance(tensor, DTensor) and _is_fake(local_of(tensor)))


def _address(value: Any) -> int:
    """Return the address of a value's storage; 0 if it has none."""
    if not isinstance(value, torch.Tensor):
        return 0
    local = local_of(value)
    if local.layout is not torch.strided or local.is_nested or local._is_zerotensor():
        return id(local)
    return local.untyped_storage().data_ptr()


def _plain(shape: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, shape))
