"""What tensors are and hold: DTensors, specs, local shards, storages, versions, results of collectives."""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import keystr as _keystr
from torch.utils._pytree import tree_flatten_with_path, tree_leaves
from torch.utils._pytree import tree_unflatten as tree_unflatten

from pytest_dtdispatch.torchapi.hooks import local_mode_type
from pytest_dtdispatch.torchapi.ops import open_modes, without_outer_modes

_OWN = torch.empty(0)  # nobody else's, to try functions of torch on


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
    """Return whether a tensor is of a subclass that keeps DTensors in its attributes, as a pair may."""
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


def are_on_meta(values: Iterable[Any]) -> bool:
    """Tell whether the local tensor of any DTensor has a shape, and no memory."""
    return any(DTensor in type(value).__mro__ and value.device.type == "meta" for value in values)


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
    return next((value for name in names if (value := getattr(context, name, None)) is not None), ())


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


def storages_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that hold what a tensor shows: local shards, inner tensors of a subclass."""
    if isinstance(tensor, DTensor):
        return storages_of(tensor._local_tensor)
    simulated = getattr(tensor, "_local_tensors", None)
    if simulated is not None:
        return [plain for shard in simulated.values() for plain in storages_of(shard)]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [plain for name in names for plain in storages_of(getattr(tensor, name))]


def place_in_memory(plain: torch.Tensor) -> tuple[Any, ...]:
    """Return what only tensors share that show the same elements of the same storage."""
    storage = plain.untyped_storage()._cdata
    return storage, plain.storage_offset(), tuple(plain.shape), plain.stride(), plain.dtype


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor, of its own class or a subclass; None of one that has no storage."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and wrapped tensors raise
            return None


class Heap:
    """What the garbage collector knows: all of it at first, and then what may have come since.

    To look through all takes 60 ms where torch is imported.
    """

    def __init__(self) -> None:
        self._collections: list[int] = []

    def instances(self, *classes: type) -> list[Any]:
        """Find instances of classes and of their subclasses."""
        kinds = {id(each) for each in _subclasses(classes)}
        return [each for each in self._objects() if id(type(each)) in kinds]

    def _objects(self) -> list[Any]:
        young = gc.get_objects(generation=0) + gc.get_objects(generation=1)
        before, self._collections = self._collections, [each["collections"] for each in gc.get_stats()[1:]]
        # Where there was no collection since that makes objects old, all that is new is young.
        return young if before == self._collections else gc.get_objects()


def _subclasses(classes: Iterable[type]) -> Iterator[type]:
    for each in classes:
        yield each
        yield from _subclasses(type.__subclasses__(each))


def has_graph(tensor: torch.Tensor) -> bool:
    """Tell whether autograd has a graph behind a tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad and not tensor.is_leaf


class StorageReference(StorageWeakRef):
    """A weak reference to a storage, which an interrupt may leave half made without a word."""

    __slots__ = ()

    def __init__(self, storage: torch.UntypedStorage) -> None:
        """Refer to a storage."""
        super().__init__(storage)  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Free what was made: the last thing that torch sets is what frees it."""
        if hasattr(self, "_free_weak_ref"):
            super().__del__()  # type: ignore[no-untyped-call]


def storage_behind(reference: StorageReference) -> torch.UntypedStorage | None:
    """Return the storage that a weak reference stands for, or None where nothing has it any more."""
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a whole storage as a tensor of bytes."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


class TensorNumbers:
    """Numbers tensors: those that show the same elements of one storage have the same number.

    A weak reference to a storage keeps its address from being given to another one.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of_memory(self, tensor: torch.Tensor, *versions: int | None) -> int:
        """Return the number of a tensor, by what it shows and how often it was written to; 0 if unknown."""
        plain = storages_of(tensor)[0]
        storage = storage_of(plain)
        if storage is None or None in versions:
            return 0
        key = (StorageReference(storage), *place_in_memory(plain)[1:], *versions)
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def of_contents(self, local: torch.Tensor, *versions: int | None) -> int:
        """Return the number of a local shard, another one once it, or its DTensor, was written to."""
        return self.of_memory(local, version_of(storages_of(local)[0]), *versions)


def version_of(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to, as autograd counts; None of an inference tensor."""
    return None if tensor.is_inference() else tensor._version


@functools.cache
def _version_setter() -> Callable[[torch.Tensor, int], None]:
    """Return what sets a version, found on a tensor of ours: torch prints what it refuses, freed or not."""
    set_counter: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        set_counter((_OWN,), (0,))
    except TypeError:  # up to torch 2.6 it took one tensor
        return set_counter  # type: ignore[no-any-return]
    return lambda tensor, version: set_counter((tensor,), (version,))


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Make autograd count another number of writes."""
    _version_setter()(tensor, version)


def spec_of(tensor: DTensor) -> tuple[Any, Any]:
    """Return what says where a DTensor lives, and what it is made of there.

    An op that writes to the DTensor may give it another; up to torch 2.9 a miss may give the one that it has
    another shape.
    """
    return tensor._spec, tensor._spec.tensor_meta


def set_spec(tensor: DTensor, spec: tuple[Any, Any]) -> None:
    """Set what says where a DTensor lives."""
    own, meta = spec
    if tensor._spec is not own:
        tensor._spec = own
    if own.tensor_meta is not meta:
        own.tensor_meta = meta


def random_tracker_states() -> dict[str, torch.Tensor]:
    """Return the states that DTensor's random tracker keeps, to read and to write.

    Older trackers keep their own; newer ones use the device's generator and give an empty dictionary.
    """
    tracker = importlib.import_module("torch.distributed.tensor._random")._rng_tracker
    states = getattr(tracker, "rng_states", None)
    return states if isinstance(states, dict) else {}


def cuda_generator(device: torch.device) -> torch.Generator:
    """Return the generator that random ops on a CUDA device draw from."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


@dataclass(frozen=True)
class KnownPart:
    """What this rank knows of a tensor: all of it, but of a sharded DTensor on a fake process group.

    Args:
        shape: of the whole tensor.
        values: of the part, a plain tensor of its own memory.
        offset: of the part in the whole.
    """

    shape: tuple[int, ...]
    values: torch.Tensor
    offset: tuple[int, ...]


def flatten(result: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Take a nested result apart: its leaves with where they stand, and what puts them together again."""
    leaves, spec = tree_flatten_with_path(result)
    return [(_keystr(path), leaf) for path, leaf in leaves], spec


def known_part(tensor: torch.Tensor) -> KnownPart:
    """Copy what this rank knows of a tensor."""
    wait_for(tensor)
    with torch.no_grad():
        if not isinstance(tensor, DTensor):
            return _whole(tensor)
        region = _region(tensor) if is_group_fake() else None
        if region is None:
            return _whole(tensor.full_tensor())
        return KnownPart(tuple(tensor.shape), _copy(tensor.to_local()), region)


def common(first: KnownPart, other: KnownPart) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is known of both of two tensors of one shape."""

    def cut(part: KnownPart, against: KnownPart) -> torch.Tensor:
        dims = zip(part.offset, against.offset, against.values.shape, strict=True)
        spans = (slice(max(low - begin, 0), max(low + length - begin, 0)) for begin, low, length in dims)
        return part.values[tuple(spans)]

    return cut(first, other), cut(other, first)


def _whole(tensor: torch.Tensor) -> KnownPart:
    values = _copy(tensor)
    return KnownPart(tuple(values.shape), values, (0,) * values.ndim)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the memory of the host, of the first rank where all are simulated."""
    wait_for(tensor)
    with without_outer_modes():
        plain = shards_of_simulated_ranks(tensor)[0].detach()
        return (plain if plain.layout is torch.strided else plain.to_dense()).cpu().clone()


def _region(tensor: DTensor) -> tuple[int, ...] | None:
    """Find where the local shard lies in the whole; None where it is no region of it."""
    if any(type(placement) not in (Shard, Replicate, Partial) for placement in tensor.placements):
        return None
    utils = importlib.import_module("torch.distributed.tensor._utils")
    shape, offset = utils.compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offset) if tuple(shape) == tuple(tensor.to_local().shape) else None


def is_group_fake() -> bool:
    """Return whether collectives of this process move no data: a fake group does, unless it is simulated."""
    dist = torch.distributed
    return dist.is_initialized() and str(dist.get_backend()) == "fake" and not is_local_mode_open()


def is_local_mode_open() -> bool:
    """Return whether all ranks are simulated in this process now."""
    kind = local_mode_type()
    return kind is not None and any(isinstance(mode, kind) for mode in open_modes())
