"""Every private name of torch that we use, found by probing; nothing else of ours spells one."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.tensor import DTensor, Placement
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.hooks import SharedHook

T = TypeVar("T")
MISSING = object()
# Some overloads of batch normalisation update these, and their schema does not say so.
UNDECLARED_WRITES = ("running_mean", "running_var")


@dataclass(frozen=True)
class NamedCache:
    """A cache of torch that is not part of a miss: how to empty it, and how many entries it has."""

    name: str
    clear: Callable[[], Any]
    size: Callable[[], int]


@dataclass(frozen=True)
class PropagatorApi:
    """What this torch has for clearing and counting sharding propagation.

    Args:
        python_cache: per-thread cache of the propagator; its ``cache`` is this thread's ``lru_cache``.
        native_clear: empties the cache of the native dispatcher, where torch has one.
        native_stats: hits and misses of that cache, this thread's.
        tensor_meta: the tensor-meta cache, which old dispatchers ask on a miss, where torch has one.
        transform_plans: plans of redistribution that hold placements of sharding plans, and must go with
            them: of a torch that takes one masked partial placement for another.
        propagator: the object whose uncached entry can be watched.
    """

    python_cache: Any
    native_clear: Callable[[], None] | None
    native_stats: Callable[[], tuple[int, int]] | None
    tensor_meta: NamedCache | None
    transform_plans: NamedCache | None
    propagator: Any

    @property
    def interface(self) -> str:
        """Name the caches that this torch has."""
        return "native+python" if self.native_clear else "python"


def propagator_api() -> PropagatorApi:
    """Find the sharding-propagation caches of this torch."""
    propagator = _follow(DTensor, "_op_dispatcher.sharding_propagator")
    python_cache = _follow(propagator, "propagate_op_sharding")
    for name in ("cache_clear", "cache_info"):
        if _follow(python_cache, f"cache.{name}") is MISSING:
            raise _unsupported(
                f"DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.{name}"
            )
    native_clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    native_stats = getattr(torch._C, "_get_DTensor_sharding_propagator_cache_stats", None)
    if (native_clear is None) != (native_stats is None):
        have, lack = ("clear", "stats") if native_stats is None else ("stats", "clear")
        raise _unsupported(
            f"the native sharding-propagation cache's {lack} function beside its {have} function"
        )
    meta = next(
        (
            NamedCache("tensor meta", cache.cache_clear, _lru_size(cache))
            for name in ("_propagate_tensor_meta_cached", "_propagate_tensor_meta")
            if _follow(cache := _follow(type(propagator), name), "cache_clear") is not MISSING
        ),
        None,
    )
    plans = _transform_plans() if _masks_are_confused() else None
    return PropagatorApi(python_cache, native_clear, native_stats, meta, plans, propagator)


def _transform_plans() -> NamedCache | None:
    cache = _follow(redistribute_module(), "_gen_transform_infos")
    if _follow(cache, "cache_clear") is MISSING:
        return None
    return NamedCache("transform plans", cache.cache_clear, _lru_size(cache))


@functools.cache
def _masks_are_confused() -> bool:
    """Tell a torch whose masked partial placements are equal though each keeps a mask of its own."""
    home = importlib.import_module("torch.distributed.tensor._ops._embedding_ops")
    kind = getattr(home, "_MaskPartial", None) or getattr(home, "MaskPartial", None)
    return kind is not None and kind() == kind()


def cold_caches() -> tuple[NamedCache, ...]:
    """Find the caches that feed propagation: FakeTensor results, redistribution plans, mesh topology."""
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    redistribute = redistribute_module()
    collectives = importlib.import_module("torch.distributed.tensor._collective_utils")
    found = [
        NamedCache("FakeTensor", fake_tensor.cache_clear, lambda: len(fake_tensor.cache)),
    ]
    if (plans := _transform_plans()) is not None:
        found.append(plans)
    topology = _follow(collectives, "MeshTopoInfo.build_from_mesh")
    if _follow(topology, "cache_clear") is not MISSING:
        found.append(NamedCache("mesh topology", topology.cache_clear, _lru_size(topology)))
    planner_clear = _follow(redistribute, "clear_redistribute_planner_cache")
    planners = _follow(redistribute, "_planner_cache")
    if planner_clear is not MISSING and planners is not MISSING:
        found.append(NamedCache("redistribution planners", planner_clear, lambda: len(planners)))
    return tuple(found)


class _UncachedCounts(threading.local):
    """Who counts the uncached propagations of this thread."""

    def __init__(self) -> None:
        self.counts: list[list[int]] = []


_uncached = _UncachedCounts()


@contextmanager
def counting_uncached(propagator: Any) -> Iterator[list[int]]:
    """Count this thread's calls of the propagator's uncached entry, in the one element of the list.

    Tracing and some modes propagate on every call without asking a cache, and no counter shows it.
    The propagator's own cache holds the entry as it was bound at start, and does not pass here.
    """
    count = [0]
    with _uncached_hook(propagator).in_place():
        _uncached.counts.append(count)
        try:
            yield count
        finally:
            _uncached.counts[:] = [other for other in _uncached.counts if other is not count]


@functools.cache
def _uncached_hook(propagator: Any) -> SharedHook:
    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            for count in _uncached.counts:
                count[0] += 1
            return inner(*args, **kwargs)

        return counted

    return SharedHook(propagator, "propagate_op_sharding_non_cached", wrap)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object another attribute for a while."""
    own = vars(owner).get(name, MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def without_outer_modes() -> AbstractContextManager[Any]:
    """Keep the modes that the program itself has open from seeing what is repeated."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
    return disabled


def with_own_warnings(run: Callable[[], T]) -> T:
    """Call, and have torch give the warnings of its C++ code before this returns.

    Torch keeps them until the outermost of its functions that the program called returns, which may be a
    whole backward. A function that calls back, here for the only element, keeps them no longer than itself.
    """
    results = []

    def keep(element: float) -> float:
        results.append(run())
        return element

    unseen = torch._C.DisableTorchFunction if torch._C._len_torch_function_stack() else nullcontext
    with unseen():
        torch.zeros(1, device="cpu").apply_(keep)
    return results[0]


def open_modes() -> list[Any]:
    """Return the dispatch modes that are open in this thread, outermost first."""
    modes: list[Any] = _python_dispatch._get_current_dispatch_mode_stack()
    return modes


def is_mode_of_program(mode: Any) -> bool:
    """Tell a dispatch mode that a program opened from those that torch's compiler opens for itself."""
    if not isinstance(mode, TorchDispatchMode) or type(mode).__module__.startswith("torch._functorch"):
        return False
    is_infra = getattr(mode, "is_infra_mode", None)
    return is_infra is None or not is_infra()


def is_op(func: Any) -> bool:
    """Tell an op overload, which has a schema, from a higher-order operator, which has none."""
    return isinstance(func, torch._ops.OpOverload)


def op_name(func: Any) -> str:
    """Name an op as tables do: ``add.Tensor``, and with its namespace where that is not ``aten``."""
    namespace = getattr(func, "namespace", "aten")
    return str(func.__name__) if namespace == "aten" else f"{namespace}.{func.__name__}"


class Argument(NamedTuple):
    """One argument of an op call, beside what the op's schema says of it."""

    name: str
    type: str
    value: Any
    default: Any
    is_written: bool


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Argument]:
    """Pair the arguments of a call with the op's schema, those given and no others."""
    paired = []
    for position, (name, kind, default, is_written) in enumerate(_declared(func)):
        if position < len(args):
            value = args[position]
        elif name in kwargs:
            value = kwargs[name]
        else:
            continue
        paired.append(Argument(name, kind, value, default, is_written))
    return paired


@functools.lru_cache(maxsize=1024)  # asked for every captured op, and slow to read
def _declared(func: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Read the arguments that an op declares: name, type, default, whether it is written to."""
    return tuple(
        (
            argument.name,
            str(argument.type),
            argument.default_value,
            (argument.alias_info is not None and argument.alias_info.is_write)
            or argument.name in UNDECLARED_WRITES,
        )
        for argument in func._schema.arguments
    )


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return every argument of an op call, lists of tensors flattened."""
    values = [*args, *kwargs.values()]
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return tree_leaves(values)
    return values  # of most ops, and torch's own function takes ten times as long


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an op's schema.

    Args:
        name: its name.
        type: as torch writes it, ``Tensor``, ``List[Tensor]``, ``Optional[Tensor]``, ``number``.
        is_required: whether it has no default.
        is_keyword: whether it can be given by name alone.
        is_output: whether it is a tensor that results are written to.
        length: of a list, where the schema fixes it; else 0.
    """

    name: str
    type: str
    is_required: bool
    is_keyword: bool
    is_output: bool
    length: int


def schema_of(func: Any) -> list[SchemaArgument]:
    """Return the arguments that an op's schema declares."""
    return [
        SchemaArgument(
            argument.name,
            str(argument.type),
            not argument.has_default_value(),
            argument.kwarg_only,
            argument.is_out,
            argument.N or 0,
        )
        for argument in func._schema.arguments
    ]


def ops_with_a_rule() -> dict[str, Any]:
    """Return every op that DTensor's propagator or dispatcher has a rule for, by name, in the order of names.

    Registries that this torch does not have hold no op.
    """
    dispatcher = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    registries = (
        getattr(propagator, "op_to_rules", {}),
        getattr(propagator, "op_strategy_funcs", {}),
        getattr(propagator, "op_single_dim_strategy_funcs", {}),
        getattr(dispatcher, "_custom_op_handlers", {}),
    )
    ops = {op for registry in registries for op in registry}
    return dict(sorted((op_name(op), op) for op in ops if is_op(op)))


def returns_nothing(func: Any) -> bool:
    """Tell whether an op's schema returns nothing."""
    return not func._schema.returns


def returns_alias(func: Any) -> bool:
    """Tell whether an op's schema returns one of its arguments, or a view of one."""
    return any(returned.alias_info is not None for returned in func._schema.returns)


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
    if isinstance(value, torch.Tensor):
        placements = value.placements if isinstance(value, DTensor) else ()
        return TensorTraits(value.dtype, value.shape, placements, is_async(value))
    meta = getattr(value, "tensor_meta", None) if isinstance(value, spec_type()) else None
    return None if meta is None else TensorTraits(meta.dtype, meta.shape, value.placements)


def stride_of(value: Any) -> Sequence[int]:
    """Return the strides of a tensor, or of a spec that stands for one; none of a tensor without strides."""
    if isinstance(value, torch.Tensor):
        return value.stride() if value.layout is torch.strided else ()
    stride: Sequence[int] = value.tensor_meta.stride
    return stride


def is_async(tensor: torch.Tensor) -> bool:
    """Tell whether a DTensor's local shard comes from a collective that torch waits for at its first use."""
    return isinstance(tensor, DTensor) and isinstance(tensor._local_tensor, _async_type())


@functools.cache
def _async_type() -> Any:
    return importlib.import_module("torch.distributed._functional_collectives").AsyncCollectiveTensor


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


def ranks_of(mesh: Any) -> list[int]:
    """Return the ranks of a mesh, its last dimension running fastest."""
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks


@functools.cache
def spec_type() -> Any:
    """Return the class of the objects that say where a DTensor lives."""
    return importlib.import_module("torch.distributed.tensor._dtensor_spec").DTensorSpec


def redistribute_module() -> Any:
    """Return the module in which DTensors are redistributed."""
    return importlib.import_module("torch.distributed.tensor._redistribute")


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a DTensor, itself and no view of it; any other tensor as it is."""
    local: torch.Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local


def wait_for(result: Any) -> None:
    """Wait for the collectives that fill the tensors of a result, where the program has not yet.

    Torch keeps each of them until somebody waits for it, and counts those that nobody did at its end.
    """
    for tensor in _unwaited(tree_leaves(result)):
        tensor.trigger_wait()


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


def dispatch_loggers() -> Sequence[logging.Logger]:
    """Return the loggers whose DEBUG level slows the dispatcher down."""
    return [logging.getLogger(f"torch.distributed.tensor.{name}") for name in ("_dispatch", "_sharding_prop")]


def init_fake_group(world_size: int) -> None:
    """Start a process group of any size in this one process, in which every collective is a fake."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=world_size)


def forget_group_that_failed() -> None:
    """Let the next process group have the name that it has on ranks where none failed: torch numbers them."""
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    if not torch.distributed.is_initialized() and hasattr(world, "group_count"):
        setattr(world, "group_count", 0)  # noqa: B010 (no stub of torch has it)


def has_local_mode() -> bool:
    """Tell whether this torch can simulate all ranks in one process, results included."""
    return _local_mode_type() is not None


def local_mode(world_size: int) -> AbstractContextManager[Any]:
    """Return the mode in which every tensor of a fake process group has the values of every rank."""
    kind = _local_mode_type()
    mode: AbstractContextManager[Any] = kind(world_size)
    return mode


def is_local_mode_open() -> bool:
    """Tell whether all ranks are simulated in this process now."""
    kind = _local_mode_type()
    return kind is not None and any(isinstance(mode, kind) for mode in open_modes())


@functools.cache
def _local_mode_type() -> Any:
    try:
        module = importlib.import_module("torch.distributed._local_tensor")
    except ImportError:
        return None
    return getattr(module, "LocalTensorMode", None)


def start_rpc(rank: int, world_size: int, path: str, timeout_s: float) -> None:
    """Start RPC between ranks that meet at a file.

    A ``tcp://`` meeting point would hang under torchrun, whose setting for its own store makes every rank of
    it a client.
    """
    rpc = importlib.import_module("torch.distributed.rpc")
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{path}", rpc_timeout=timeout_s, _transports=["uv"]
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # it does, not its user
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)


def stop_rpc(graceful: bool, timeout_s: float) -> None:
    """Stop RPC; gracefully, when every rank has come to do so."""
    rpc = importlib.import_module("torch.distributed.rpc")
    rpc.shutdown(graceful=graceful, timeout=timeout_s)


def sharded_tensors() -> Any:
    """Return the module of ``ShardedTensor``, which torch deprecates."""
    return importlib.import_module("torch.distributed._shard.sharded_tensor")


def split_over_ranks(world_size: int, device: str) -> Any:
    """Return the spec that splits a sharded tensor by its first dimension over all ranks."""
    specs = importlib.import_module("torch.distributed._shard.sharding_spec")
    devices = [device] if device == "cpu" else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    places = [f"rank:{rank}/{devices[rank % len(devices)]}" for rank in range(world_size)]
    return specs.ChunkShardingSpec(dim=0, placements=places)


def fully_shard() -> Callable[..., Any]:
    """Find FSDP2's function, which was private before torch 2.6."""
    found = getattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard", None)
    if found is None:
        found = importlib.import_module("torch.distributed._composable.fsdp").fully_shard
    function: Callable[..., Any] = found
    return function


def foreach_add() -> Callable[..., Any]:
    """Find the function that optimizers add lists of tensors with; its name starts with an underscore."""
    function: Callable[..., Any] = torch._foreach_add
    return function


def empty_wrapper(kind: type, like: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> Any:
    """Make a tensor of a subclass that has no storage of its own."""
    return torch.Tensor._make_wrapper_subclass(
        kind,
        shape,
        strides=stride,
        storage_offset=like.storage_offset(),
        dtype=like.dtype,
        layout=like.layout,
        device=like.device,
        requires_grad=like.requires_grad,
    )


def with_aliases(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Make the results of a subclass alias its arguments as an op's schema says."""
    return _python_dispatch.return_and_correct_aliasing(func, args, kwargs, result)


def instruction_counter() -> Any:
    """Return what starts and ends the processor's counter of instructions; None where torch has nothing."""
    return getattr(torch._C, "_instruction_counter", None)


def cuda_driver_version() -> str:
    """Return the newest CUDA version that the driver takes, ``12.4``; empty where torch does not tell."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def torch_build() -> str:
    """Return the git revision that torch was built from."""
    return str(getattr(torch.version, "git_version", "unknown"))


def _follow(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, MISSING)
    return owner


def _lru_size(cache: Any) -> Callable[[], int]:
    return lambda: int(cache.cache_info().currsize)


def _unsupported(what: str) -> UnsupportedTorchError:
    return UnsupportedTorchError(
        f"torch {torch.__version__} cannot be measured: it lacks {what}; torch 2.5 to 2.15 have it"
    )
