"""Properties of tensors: DTensors, specs, local shards, storages, versions, results of collectives."""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor, wait_tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, _random
from torch.distributed.tensor._dtensor_spec import DTensorSpec as DTensorSpec
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import keystr as _keystr
from torch.utils._pytree import tree_flatten_with_path, tree_leaves
from torch.utils._pytree import tree_unflatten as tree_unflatten

from pytest_dtdispatch.core.text import Answer, ask
from pytest_dtdispatch.torchapi.observe import local_mode_type
from pytest_dtdispatch.torchapi.ops import open_modes, without_outer_modes

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def ask_tensor(question: Callable[[Any], Answer], tensor: Any, unknown: Answer) -> Answer:
    """Return ``question(tensor)`` for a tensor of the program, or ``unknown`` if it raises.

    Stale views have no ``grad_fn``; nested, sparse and wrapped tensors have no shape, stride, storage or
    version. The question is hidden from ``__torch_function__`` of modes and subclasses.
    """
    with torch._C.DisableTorchFunction():
        return ask(question, tensor, unknown)


def tensor_query(unknown: Any) -> Callable[[Callable[[Any], Answer]], Callable[[Any], Answer]]:
    """Return a decorator for functions of a tensor, which :func:`ask_tensor` then calls."""

    def decorated(question: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
        @functools.wraps(question)
        def answer(tensor: Any) -> Answer:
            found: Answer = ask_tensor(question, tensor, unknown)
            return found

        return answer

    return decorated


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor, judging only by its type: its ``__class__`` may raise."""
    return issubclass(type(value), torch.Tensor)


def is_dtensor(value: object) -> bool:
    """Return whether a value is a DTensor, judging only by its type."""
    return issubclass(type(value), DTensor)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested value; an empty list if it cannot be flattened."""
    return [leaf for leaf in ask_tensor(tree_leaves, result, list[Any]()) if is_tensor(leaf)]


class TensorTraits(NamedTuple):
    """Properties of a tensor that are part of cache keys; a plain tensor has no placements.

    ``is_async``: the local shard is the result of a collective that was not awaited; ops on it take longer.
    """

    dtype: torch.dtype
    shape: Sequence[int]
    placements: Sequence[Placement]
    is_async: bool = False


def actual_traits(tensor: torch.Tensor) -> TensorTraits:
    """Return the traits of a tensor, whatever the spec of a DTensor contains."""
    placements = tensor.placements if is_dtensor(tensor) else ()  # type: ignore[attr-defined]
    is_async = issubclass(type(local_of(tensor)), AsyncCollectiveTensor)
    unknown: Any = "?"
    dtype, shape = (ask_tensor(attrgetter(name), tensor, unknown) for name in ("dtype", "shape"))
    return TensorTraits(dtype, shape, placements, is_async)


def tensor_traits(value: Any) -> TensorTraits | None:
    """Return the traits of a tensor, or of the spec that replaces it in propagation, else None.

    Dtype and shape of a DTensor are those of its spec, the key of the caches. ``p.data = q`` changes the
    tensor alone.
    """
    if is_tensor(value):
        meta = value._spec.tensor_meta if is_dtensor(value) else None
        if meta is None:
            return actual_traits(value)
        is_async = issubclass(type(value._local_tensor), AsyncCollectiveTensor)
        return TensorTraits(meta.dtype, meta.shape, value.placements, is_async)
    meta = value.tensor_meta if type(value) is DTensorSpec else None
    return None if meta is None else TensorTraits(meta.dtype, meta.shape, value.placements)


def stride_of(value: Any) -> Sequence[int]:
    """Return the strides of a tensor or a spec; empty for a tensor without strides."""
    spec = value._spec if is_dtensor(value) else value
    if is_tensor(spec) or spec.tensor_meta is None:
        return ask_tensor(torch.Tensor.stride, value, ())
    stride: Sequence[int] = spec.tensor_meta.stride
    return stride


def wraps_dtensors(value: Any) -> bool:
    """Return whether a tensor has a subclass with DTensors in its attributes."""
    visited: dict[int, Any] = {}
    pending = [] if is_dtensor(value) else [value]
    while pending:
        each = pending.pop()
        if is_dtensor(each):
            return True
        if is_tensor(each) and type(each) not in PLAIN_TYPES and id(each) not in visited:
            visited[id(each)] = each
            pending += (*ask(attrgetter("__dict__"), each, {}).values(), *inner_tensors(each))
    return False


def inner_tensors(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the inner tensors of a tensor subclass; none for plain tensors."""
    return () if type(tensor) in PLAIN_TYPES else flattened_subclass(tensor)


@tensor_query(())
def flattened_subclass(tensor: Any) -> Sequence[torch.Tensor]:
    """Return the inner tensors of a tensor subclass, or of all simulated ranks."""
    simulated = getattr(tensor, "_local_tensors", None)
    if simulated is not None:
        return [*simulated.values()]
    names, _ = tensor.__tensor_flatten__()
    return [*filter(is_tensor, (getattr(tensor, name) for name in names))]


def mesh_among(leaves: Sequence[Any]) -> Any:
    """Return the mesh of the first DTensor or spec, or None."""
    for leaf in leaves:
        if is_dtensor(leaf):
            return leaf.device_mesh
        if type(leaf) is DTensorSpec:
            return getattr(leaf.mesh, "real_obj", leaf.mesh)  # traced programs have a wrapper
    return None


def are_on_meta(values: Iterable[Any]) -> bool:
    """Return whether the local tensor of any DTensor is on meta: it has a shape but no memory."""
    return any(is_dtensor(value) and ask_tensor(attrgetter("is_meta"), value, False) for value in values)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a DTensor, not a view of it; return any other tensor unchanged."""
    local: torch.Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return local


def wrapped_with(context: Any) -> Sequence[Placement]:
    """Return the placements that autograd's context of ``from_local`` stores for the gradient."""
    for name in ("grad_placements", "forward_input_placements", "previous_placement"):
        placements: Sequence[Placement] | None = getattr(context, name, None)
        if placements is not None:
            return placements
    return ()


def wait_for(result: Any) -> None:
    """Wait for pending collectives of the tensors of a result.

    Torch registers each collective until it is awaited, and reports those that remain at exit.
    """
    for tensor in _unwaited(tensors_in(result)):
        tensor.trigger_wait()


def unwaited() -> int:
    """Return the number of registered collectives that were not awaited; 0 if torch does not count them."""
    count = getattr(getattr(torch._C, "_distributed_c10d", None), "_get_work_registry_size", None)
    return int(count()) if count else 0


def wait_for_all(outputs: list[torch.Tensor], result: Any = None) -> None:
    """Wait for pending collectives of a result and of a list of tensors, and clear the list."""
    wait_for(result)
    while outputs:
        wait_tensor(outputs.pop())


def release_of(result: Any) -> Callable[[Any], None] | None:
    """Return the function to call with results like this one before their deletion, or None."""
    return wait_for if next(_unwaited(tensors_in(result)), None) is not None else None


def _unwaited(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield tensors, including inner ones, that a collective may not have written yet."""
    for tensor in tensors:
        if issubclass(type(tensor), AsyncCollectiveTensor):
            yield tensor
        else:
            yield from _unwaited(inner_tensors(tensor))


def shards_of_simulated_ranks(local: torch.Tensor) -> list[torch.Tensor]:
    """Return the shards of all ranks if they are simulated in this process, else the tensor alone."""
    return list(ask_tensor(attrgetter("_local_tensors"), local, {0: local}).values())


def storages_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return plain tensors with the storages of a tensor: local shards, inner tensors of a subclass."""
    local = local_of(tensor)
    return [plain for inner in inner_tensors(local) for plain in storages_of(inner)] or [local]


def storage_key(tensor: Any) -> int:
    """Return a key of the storage of a tensor or of its first local tensor; all views share it.

    The address of its memory does not suffice: when FSDP2 resizes a storage, it may get that of a freed one.
    """
    plain = storages_of(shards_of_simulated_ranks(local_of(tensor))[0])[0]
    return ask_tensor(_storage_key, plain, id(plain))


def _storage_key(plain: torch.Tensor) -> int:
    storage = plain.untyped_storage()
    return hash((storage._cdata, storage.data_ptr()))


def is_even(spec: Any) -> bool:
    """Return whether the shards of all ranks have one size."""
    sizes = [*spec.shape]
    for placement, ranks in zip(spec.placements, spec.mesh.shape, strict=True):
        if isinstance(placement, Shard):
            if sizes[placement.dim] % ranks:
                return False
            sizes[placement.dim] //= ranks
    return True


def is_replicated(tensor: Any) -> bool:
    """Return whether each rank has all elements of a DTensor."""
    return all(placement.is_replicate() for placement in tensor.placements)


def layout_of(tensor: Any) -> tuple[Any, ...]:
    """Return a key that is equal for tensors whose dtype, device, mesh and placements are equal."""
    if is_dtensor(tensor):
        return tensor.dtype, tensor.device_mesh, tuple(tensor.placements)
    return tensor.dtype, tensor.device


@tensor_query(None)
def memory_key(plain: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a key that is equal for tensors with the same elements of a storage; None if unknown."""
    key = (plain.untyped_storage()._cdata, plain.storage_offset(), *plain.shape, plain.stride(), plain.dtype)
    hash(key)  # raises if sizes are symbolic
    return key


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor or a tensor subclass; None if it has none."""
    return ask_tensor(torch.Tensor.untyped_storage, tensor, None)


def keep_alive(tensor: torch.Tensor) -> None:
    """Let the Python object of a tensor that the garbage collector returned keep the tensor alive.

    Otherwise some versions, such as torch 2.9, clear the object when the C++ code that holds the tensor, such
    as an autograd graph or a pending collective, releases it.
    """
    ask_tensor(methodcaller("_fix_weakref"), tensor, None)


def is_being_freed(tensor: torch.Tensor) -> bool:
    """Return whether another thread is freeing a tensor that the garbage collector returned.

    Up to torch 2.9 its Python object remains until that thread, as gloo's after a collective, has the GIL;
    :func:`keep_alive` would have it freed twice.
    """
    return ask_tensor(methodcaller("_use_count"), tensor, 1) == 0


def dead_reference() -> None:
    """Return None, as a weak reference to a deleted object does."""


class Heap:
    """Objects tracked by the garbage collector; after the first query, only objects that may be new.

    A query of all objects takes 60 ms once torch is imported.
    """

    def __init__(self) -> None:
        self._collections: list[int] = []

    def instances(self, *classes: type) -> list[Any]:
        """Return instances of classes and of their subclasses."""
        kinds = {id(each) for each in subclasses(*classes)}
        young = gc.get_objects(generation=0) + gc.get_objects(generation=1)
        before, self._collections = self._collections, [each["collections"] for each in gc.get_stats()[1:]]
        # Without a collection that moves objects to the oldest generation, all new objects are young.
        objects = young if before == self._collections else gc.get_objects()
        return [each for each in objects if id(type(each)) in kinds]


def subclasses(*classes: type) -> Iterator[type]:
    """Yield classes and all their subclasses."""
    for each in classes:
        yield each
        yield from subclasses(*type.__subclasses__(each))


@tensor_query(True)
def has_graph(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has an autograd graph; true for a stale view, as its base has one."""
    return tensor.requires_grad and not tensor.is_leaf


class StorageReference(StorageWeakRef):
    """A weak reference to a storage whose creation may be interrupted."""

    __slots__ = ()

    def __init__(self, storage: torch.UntypedStorage) -> None:
        """Create the reference."""
        super().__init__(storage)  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Free the reference if it is complete: torch sets this attribute last."""
        if hasattr(self, "_free_weak_ref"):
            super().__del__()  # type: ignore[no-untyped-call]


def storage_behind(reference: StorageReference) -> torch.UntypedStorage | None:
    """Return the storage of a weak reference, or None if it is freed."""
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a whole storage as a tensor of bytes."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


class TensorNumbers:
    """Numbers of tensors, equal for tensors with the same elements of a storage.

    A weak reference to the storage prevents the reuse of its address.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of_memory(self, tensor: torch.Tensor, *versions: int | None) -> int:
        """Return the number of a tensor by its memory and versions; 0 if unknown."""
        plain = storages_of(tensor)[0]
        storage, region = storage_of(plain), memory_key(plain)
        if storage is None or region is None or None in versions:
            return 0
        key = (StorageReference(storage), *region[1:], *versions)
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def of_contents(self, local: torch.Tensor, *versions: int | None) -> int:
        """Return the number of a local shard, which changes with each write to it or to its DTensor."""
        return self.of_memory(local, version_of(storages_of(local)[0]), *versions)


def version_of(tensor: torch.Tensor) -> int | None:
    """Return autograd's version of a tensor; None for an inference tensor."""
    version: int | None = ask_tensor(attrgetter("_version"), tensor, None)
    return version


@functools.cache
def _version_setter() -> Callable[[torch.Tensor, int], None]:
    """Return the version setter, probed with a tensor of its own, as torch prints rejected arguments."""
    set_counter: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        set_counter((torch.empty(0),), (0,))
    except TypeError:  # up to torch 2.6 its argument is one tensor
        return set_counter  # type: ignore[no-any-return]

    def set_one(tensor: torch.Tensor, version: int) -> None:
        set_counter((tensor,), (version,))

    return set_one


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set autograd's version of a tensor."""
    _version_setter()(tensor, version)


def spec_of(tensor: DTensor) -> tuple[Any, Any]:
    """Return the spec of a DTensor, and the spec's tensor metadata.

    An op that writes to the DTensor may replace its spec; up to torch 2.9 a miss may replace the metadata.
    """
    return tensor._spec, tensor._spec.tensor_meta


def set_spec(tensor: DTensor, spec: tuple[Any, Any]) -> None:
    """Set the spec of a DTensor, and the spec's tensor metadata."""
    own, meta = spec
    if tensor._spec is not own:
        tensor._spec = own
    if own.tensor_meta is not meta:
        own.tensor_meta = meta


def share_masks(buffers: dict[tuple[Any, ...], list[Any]], call: Any, result: Any) -> None:
    """Share the mask buffer of an earlier row-sharded embedding with the result of an equal plan.

    All results of a plan share one buffer, but measuring clears plans, and a new plan has a new buffer.
    """
    placements = result.placements if is_dtensor(result) else ()
    masked = [placement for placement in placements if hasattr(placement, "mask_buffer")]
    if masked:
        key = call.func, *(leaf._spec if is_dtensor(leaf) else str(leaf) for leaf in call.leaves)
        shared = buffers.setdefault(key, [placement.mask_buffer for placement in masked])
        for placement, buffer in zip(masked, shared, strict=True):
            if placement.mask_buffer is not buffer:
                buffer.materialize_mask(placement.mask_buffer.data)
                object.__setattr__(placement, "mask_buffer", buffer)


def random_tracker_states() -> dict[str, torch.Tensor]:
    """Return the mutable states of DTensor's random tracker.

    It is empty for newer trackers, which use the generator of the device.
    """
    states = getattr(_random._rng_tracker, "rng_states", None)
    return states if isinstance(states, dict) else {}


def cuda_generator(device: torch.device) -> torch.Generator:
    """Return the default generator of a CUDA device."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


@dataclass(frozen=True)
class LocalPart:
    """Part of a tensor on this rank: the local shard on a fake process group, or else the whole tensor.

    Args:
        shape: shape of the whole tensor.
        values: copy of the part, as a plain tensor.
        offset: offset of the part in the whole tensor.
    """

    shape: tuple[int, ...]
    values: torch.Tensor
    offset: tuple[int, ...]


def flatten(result: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Flatten a nested result into its leaves with their paths, and the spec to unflatten them."""
    leaves, spec = tree_flatten_with_path(result)
    return [(_keystr(path), leaf) for path, leaf in leaves], spec


def local_part(tensor: torch.Tensor) -> LocalPart:
    """Copy the part of a tensor on this rank."""
    wait_for(tensor)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if not isinstance(tensor, DTensor):
            return _whole(tensor)
        region = _region(tensor) if is_group_fake() else None
        if region is None:
            return replace(_whole(tensor.full_tensor()), shape=tuple(tensor.shape))
        return LocalPart(tuple(tensor.shape), _copy(tensor.to_local()), region)


def common(first: LocalPart, other: LocalPart) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the overlap of parts of two tensors of the same shape."""

    def cut(part: LocalPart, against: LocalPart) -> torch.Tensor:
        dims = zip(part.offset, against.offset, against.values.shape, strict=True)
        spans = (slice(max(low - begin, 0), max(low + length - begin, 0)) for begin, low, length in dims)
        return part.values[tuple(spans)]

    return cut(first, other), cut(other, first)


def _whole(tensor: torch.Tensor) -> LocalPart:
    values = _copy(tensor)
    return LocalPart(tuple(values.shape), values, (0,) * values.ndim)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the host; if all ranks are simulated, the shard of the first rank."""
    wait_for(tensor)
    with without_outer_modes():
        plain = shards_of_simulated_ranks(tensor)[0].detach()
        return (plain if plain.layout is torch.strided else plain.to_dense()).cpu().clone()


def _region(tensor: DTensor) -> tuple[int, ...] | None:
    """Return the offset of the local shard in the whole tensor; None if it is not a contiguous region."""
    if any(type(placement) not in (Shard, Replicate, Partial) for placement in tensor.placements):
        return None
    utils = importlib.import_module("torch.distributed.tensor._utils")
    shape, offset = utils.compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offset) if tuple(shape) == tuple(tensor.to_local().shape) else None


def is_group_fake() -> bool:
    """Return whether collectives of this process move no data, as in a fake group without simulated ranks."""
    return group_backend() == "fake"


def group_backend(device: str = "cpu") -> str:
    """Return the backend of the open process group for a device type; empty if none is open.

    It is ``local`` in a simulation of all ranks. A group may have a backend for each device type.
    """
    dist = torch.distributed
    if not dist.is_initialized():
        return ""
    pairs = (each.partition(":")[::2] for each in dist.get_backend_config().split(","))
    backends = {of: backend for of, backend in pairs if backend}
    backend = backends.get(device) or next(iter(backends.values()), str(dist.get_backend()))
    return "local" if is_local_mode_open() else backend


def is_local_mode_open() -> bool:
    """Return whether a mode that simulates all ranks is open."""
    kind = local_mode_type()
    return kind is not None and any(isinstance(mode, kind) for mode in open_modes())
