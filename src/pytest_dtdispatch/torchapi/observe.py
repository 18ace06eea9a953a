"""Observation and replacement of torch functions: a table of points, and three functions that patch them.

``patch`` wraps the functions of a point, ``before`` calls a listener before each call, and ``around`` routes
each call through a method, which receives the torch function and calls it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.text import TextEnum
from pytest_dtdispatch.torchapi.patches import Wrap, calling, patched

OTHERS = ("torch.", "pytest_dtdispatch.", "_pytest.", "pluggy.")  # modules that are not the program's
# Modules of FSDP2, public since torch 2.6. They import its classes from each other.
FSDP_MODULES = tuple(
    f"{package}.{file}"
    for package in ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")
    for file in ("_fsdp_state", "_fsdp_param_group", "_fully_shard", "fully_shard")
)
FSDP_COMMON = "torch.distributed.fsdp._fully_shard._fsdp_common"
SIMULATION = "torch.distributed._local_tensor"
# The module and the path of DTensor's propagator.
DTENSOR, PROPAGATOR = ("torch.distributed.tensor",), "DTensor._op_dispatcher.sharding_propagator"
# Called by the native dispatcher on a miss, if torch has a native dispatcher.
SLOW_PATH = "_propagate_op_sharding_dispatch_slow_path"

Method = Callable[..., Any]  # receives a torch function and its arguments, and must call the function


class Point(NamedTuple):
    """Functions of torch that are patched together.

    Functions that this torch lacks, or has not loaded, are skipped. Nothing is imported to patch it.

    Args:
        modules: names of modules; the first loaded one with the path is used.
        path: dotted path from the module to the owner of the functions; empty if it is the module.
        names: names of the functions.
        is_required: whether every supported torch has at least one of them.
    """

    modules: tuple[str, ...]
    path: str
    names: tuple[str, ...]
    is_required: bool = False

    def attributes(self) -> list[tuple[Any, str]]:
        """Return owner and name of each function that this torch has."""
        owners = (follow(sys.modules[name], self.path) for name in self.modules if name in sys.modules)
        owner = next((each for each in owners if each is not None), None)
        found = [(owner, name) for name in self.names if owner is not None and hasattr(owner, name)]
        if self.is_required and not found:
            raise AttributeError(f"{self.modules[0]} has no {self.path}.{self.names[0]}")
        return found


def follow(owner: Any, path: str) -> Any:
    """Return an attribute by its dotted path, or None if any part of it is missing."""
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name, None)
    return owner


@functools.cache
def optional_module(name: str) -> ModuleType | None:
    """Import a module; return None if this torch lacks it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def local_mode_type() -> Any:
    """Return the class of the mode that simulates all ranks in one process; None if this torch lacks it."""
    return getattr(optional_module(SIMULATION), "LocalTensorMode", None)


def has_local_mode() -> bool:
    """Return whether this torch can simulate all ranks, with their results, in one process."""
    return local_mode_type() is not None


def fsdp_group_type() -> type | None:
    """Return FSDP2's class of a group of parameters; None if this torch lacks it or has not loaded it."""
    found = (follow(sys.modules.get(name), "FSDPParamGroup") for name in FSDP_MODULES)
    return next(filter(None, found), None)


def owners_of_parameters(unit: Any) -> tuple[Any, ...]:
    """Return the modules that own what an object of FSDP moves: a group of parameters or one of them."""
    attributes = getattr(unit, "__dict__", {})
    if attributes.get("_fully_sharded_module"):  # FullyShardedDataParallel
        return (attributes["_fully_sharded_module"],)
    if attributes.get("_module_info"):
        return (attributes["_module_info"].module,)
    if "fsdp_params" in attributes:
        return tuple(attributes.get("modules") or (attributes["module"],))  # ``module`` in older versions
    return ()


POINTS = {
    # Propagation and its caches. A hit of the native cache calls none of these.
    "native_miss": Point(DTENSOR, "DTensor._op_dispatcher", (SLOW_PATH,)),
    "native_clear": Point(("torch._C",), "", ("_clear_DTensor_sharding_propagator_cache",)),
    "propagation": Point(DTENSOR, PROPAGATOR, ("propagate_op_sharding_non_cached",), is_required=True),
    "python_cache": Point(DTENSOR, PROPAGATOR, ("propagate_op_sharding",), is_required=True),
    # Called early in propagation: names in newer and in older versions.
    "tensor_meta": Point(
        DTENSOR, PROPAGATOR, ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")
    ),
    # Redistribution.
    "implied": Point(DTENSOR, "DTensor._op_dispatcher", ("redistribute_local_args",), is_required=True),
    "redistribution": Point(
        ("torch.distributed.tensor._redistribute",), "", ("redistribute_local_tensor",), is_required=True
    ),
    # Shard to Shard: on a CPU mesh torch gathers, as gloo had no all_to_all.
    "exchange": Point(("torch.distributed.tensor._collective_utils",), "", ("shard_dim_alltoall",)),
    "planning": Point(
        ("torch.distributed.tensor._redistribute",),
        "",
        ("_gen_transform_infos", "_gen_transform_infos_non_cached", "_optimize_transform_infos"),
    ),
    # Redistributions that torch checks against its ExplicitRedistributionContext, open or not.
    "observed": Point(
        ("torch.distributed.tensor._utils",), "ExplicitRedistributionContext", ("observe_redistribution",)
    ),
    # Receives the output of each collective that Python runs, or a list of outputs.
    "collective_output": Point(
        ("torch.distributed._functional_collectives",),
        "",
        ("_maybe_wrap_tensor", "_maybe_wrap_tensors", "_wrap_tensor_autograd"),
    ),
    # An embedding on a table that is sharded by rows returns a masked partial sum, whose placement stores the
    # mask of the ids until the sum is reduced. The placement is part of a cached plan that all results share:
    # a result that is deleted before it is reduced, such as that of a repetition, does not remove its mask.
    "mask": Point(
        ("torch.distributed.tensor._ops._mask_buffer", "torch.distributed.tensor._ops._embedding_ops"),
        "MaskBuffer",
        ("materialize_mask", "release_mask"),
    ),
    "dispatch": Point(DTENSOR, "DTensor", ("__torch_dispatch__",)),
    "async_tensor": Point(
        ("torch.distributed._functional_collectives",), "AsyncCollectiveTensor", ("__torch_dispatch__",)
    ),
    # Entries to FSDP2, from hooks of modules and of tensors, from autograd, and from the program.
    "fsdp_hooks": Point(
        FSDP_MODULES,
        "FSDPState",
        ("_pre_forward", "_post_forward", "_pre_backward", "_root_post_backward_final_callback"),
    ),
    "fsdp_node": Point(FSDP_MODULES, "FSDPParamGroup", ("post_backward",)),
    "fsdp_module": Point(FSDP_MODULES, "FSDPModule", ("unshard", "reshard")),
    "backward": Point(("torch.autograd.graph",), "", ("_engine_run_backward",), is_required=True),
    "compiled_code": Point(("torch._dynamo.eval_frame",), "", ("_maybe_set_eval_frame",)),
    "included_keys": Point(("torch._C",), "", ("_dispatch_tls_local_include_set",), is_required=True),
    "profiler": Point(("torch.autograd.profiler",), "profile", ("_prepare_trace", "_start_trace")),
    "range": Point(("torch.autograd.profiler",), "record_function", ("__enter__",), is_required=True),
    "inference_end": Point(("torch.autograd.grad_mode",), "inference_mode", ("__exit__",), is_required=True),
    "itt": Point(("torch.autograd.profiler",), "emit_itt", ("__enter__",)),
    "nvtx": Point(("torch.autograd.profiler",), "emit_nvtx", ("__enter__",)),
    "simulation": Point((SIMULATION,), "LocalTensorMode", ("__enter__", "__exit__")),
    "simulated_op": Point((SIMULATION,), "LocalTensorMode", ("__torch_dispatch__",)),
}
Key = TypeVar("Key", str, Point)  # a name in POINTS, or a point


FSDP_POINTS = ("fsdp_hooks", "fsdp_node", "fsdp_module")


def missing_fsdp_name() -> str:
    """Return a name of ``FSDP_POINTS`` that this torch lacks; empty if it has all, or FSDP2 is not loaded."""
    is_public = hasattr(sys.modules.get("torch.distributed.fsdp"), "fully_shard")
    if not is_public and not any(name in sys.modules for name in FSDP_MODULES):
        return ""
    for point in (POINTS[name] for name in FSDP_POINTS):
        found = [name for _, name in point.attributes()]
        for name in point.names:
            if name not in found:
                return f"{point.path}.{name}"
    return ""


@contextmanager
def patch(wraps: Mapping[Key, Wrap]) -> Iterator[None]:
    """Temporarily wrap the functions of points."""
    with ExitStack() as stack:
        for point, wrap in wraps.items():
            found = POINTS[point] if isinstance(point, str) else point
            for owner, name in found.attributes():
                stack.enter_context(patched(owner, name, wrap))
        yield


def before(point: str, listener: Callable[..., object]) -> AbstractContextManager[None]:
    """Call a listener with the arguments of each call that this thread makes, immediately before the call."""
    home = threading.get_ident()

    def wrap(inner: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == home:
                listener(*args)
            return inner(*args, **kwargs)

        return run

    return patch({point: wrap})


def around(methods: Mapping[Key, Method], is_hidden: bool = True) -> AbstractContextManager[None]:
    """Route each call through a method, in every thread; ``is_hidden`` is that of ``calling``."""
    return patch({point: calling(method, is_hidden) for point, method in methods.items()})


def observe_simulated_ops(method: Method) -> AbstractContextManager[None]:
    """Route each op that all simulated ranks run through ``method(run, op, *args, **kwargs)``.

    ``run`` ignores its arguments, and runs the op with those that it was called with.
    """

    def on_op(dispatch: Any, mode: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def run(*_: Any, **__: Any) -> Any:
            return dispatch(mode, op, types, args, kwargs)

        return method(run, op, *args, **kwargs or {})

    return around({"simulated_op": on_op})


def program_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame outside of this folder, and of a dispatch mode that passed an op on."""
    passing = ("pytest_dtdispatch.torchapi", "torch._compile", "torch._dynamo.eval_frame")
    while (module_of(frame).startswith(passing) or frame.f_code.co_name == "_call_wrapper") and frame.f_back:
        frame = frame.f_back
        if module_of(frame) == "torch._ops":  # calls ops for modes: continue with the caller of the mode
            mode: FrameType | None = frame
            while mode is not None and mode.f_code.co_name != "__torch_dispatch__":
                mode = mode.f_back
            frame = (mode and mode.f_back) or frame
    return frame


def outside_of_torch(frame: FrameType | None) -> FrameType | None:
    """Return the innermost of a frame and its callers that runs code of the program; None without one."""
    while frame is not None and module_of(frame).startswith(OTHERS):
        frame = frame.f_back
    return frame


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


class Conversion(TextEnum):
    """Kind of a conversion."""

    WRAP = "wrap"
    UNWRAP = "unwrap"
    REDISTRIBUTE = "redistribute"


class Converter(NamedTuple):
    """A torch function that converts tensors.

    Args:
        kind: kind of conversion.
        name: name of the public function, ``from_local``; for a backward function, that of its forward.
        is_backward: whether it is a backward function.
    """

    kind: Conversion
    name: str
    is_backward: bool = False


def _autograd_method(owner: str, method: str) -> Point:
    """Return the point of an autograd function, which every supported torch has in one of two modules."""
    modules = ("torch.distributed.tensor._api", "torch.distributed.tensor._redistribute")
    return Point(modules, owner, (method,), is_required=True)


# Public functions with an autograd function are not patched, because compiled code has guards on them.
CONVERTERS = {
    _autograd_method("_FromTorchTensor", "forward"): Converter(Conversion.WRAP, "from_local"),
    _autograd_method("_FromTorchTensor", "backward"): Converter(Conversion.UNWRAP, "from_local", True),
    _autograd_method("_ToTorchTensor", "forward"): Converter(Conversion.UNWRAP, "to_local"),
    _autograd_method("_ToTorchTensor", "backward"): Converter(Conversion.WRAP, "to_local", True),
    _autograd_method("Redistribute", "forward"): Converter(Conversion.REDISTRIBUTE, "redistribute"),
    _autograd_method("Redistribute", "backward"): Converter(Conversion.REDISTRIBUTE, "redistribute", True),
    Point(("torch.distributed.tensor._api",), "", ("distribute_tensor",)): Converter(
        Conversion.WRAP, "distribute_tensor"
    ),
    Point((FSDP_COMMON,), "", ("_from_local_no_grad",)): Converter(Conversion.WRAP, "DTensor"),
}


def observe_conversions(
    observer: Any, kinds: Collection[Conversion] = tuple(Conversion), is_hidden: bool = True
) -> AbstractContextManager[None]:
    """Route conversions through ``observer.on_conversion(converter, function, *args, **kwargs)``.

    Nested conversions, such as ``from_local`` in the backward of ``to_local``, are both routed, the outer one
    first. Backward functions without a gradient are also routed; they are no-ops. Without grad mode,
    ``to_local`` returns the local tensor without a routed call.
    """
    converters = ((point, converter) for point, converter in CONVERTERS.items() if converter.kind in kinds)
    methods = {point: partial(observer.on_conversion, converter) for point, converter in converters}
    return around(methods, is_hidden)


@contextmanager
def observe_ops(observer: Any) -> Iterator[None]:
    """Route calls of the propagator, its caches and custom op handlers through methods of an observer.

    This applies to every thread. Each method receives the torch function and its arguments.
    """
    if POINTS["native_clear"].attributes():
        getattr(DTensor._op_dispatcher, SLOW_PATH)  # raises: without it, misses would not be counted

    def on_slow_path(slow_path: Method, *args: Any) -> Any:
        *_, try_python_cache = args  # true if the native cache could create no key, and was not queried
        return slow_path(*args) if try_python_cache else observer.on_native_miss(slow_path, *args)

    methods = {
        "native_miss": on_slow_path,
        "native_clear": observer.on_native_clear,
        "propagation": observer.on_propagation,
        "python_cache": observer.on_python_cache,
        "tensor_meta": observer.on_tensor_meta,
    }
    with around(methods), _custom_handlers_routed(observer.on_custom_handler):
        yield


@contextmanager
def _custom_handlers_routed(method: Method) -> Iterator[None]:
    """Route the dispatcher's custom op handlers, and those that contexts of torch add, through a method."""
    original: dict[Any, Method] = {}
    tables: list[dict[Any, Any]] = [DTensor._op_dispatcher._custom_op_handlers]
    # Added to those of the dispatcher while `loss_parallel` or `context_parallel` is open.
    for name, table in (
        ("torch.distributed.tensor.parallel.loss", "customized_loss_ops"),
        ("torch.distributed.tensor.experimental._context_parallel._attention", "custom_ops"),
        ("torch.distributed.tensor.experimental._attention", "customized_ops"),
    ):
        tables.append(getattr(sys.modules.get(name), table, {}))
    for handlers in tables:
        for op, handler in handlers.items():
            handlers[op] = routed = partial(method, handler)
            original[routed] = handler
    try:
        yield
    finally:
        for handlers in (*tables, DTensor._op_dispatcher._custom_op_handlers):  # context_parallel replaces it
            handlers.update({op: original.get(each, each) for op, each in handlers.items()})


class _LookupObserver:
    """Replacement of a method of a class that calls a function when the method is looked up on an object."""

    def __init__(self, note: Callable[[], None], method: Any) -> None:
        self._note, self._method = note, method

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None:
            self._note()
        return self._method.__get__(instance, owner)


@contextmanager
def observe_propagations(note: Callable[[str], None]) -> Iterator[None]:
    """Call a function immediately before each propagation, in its thread, with the name of torch's method.

    The lookup of the method is observed instead of its call: a wrapper would add a frame between an op and
    its propagation, and each frame makes propagation slower.
    """
    dispatcher = DTensor._op_dispatcher
    methods: list[tuple[type, str]] = [(type(dispatcher), SLOW_PATH)]
    if SLOW_PATH not in vars(type(dispatcher)):
        propagator = type(dispatcher.sharding_propagator)
        methods = [(propagator, name) for name in POINTS["tensor_meta"].names if name in vars(propagator)]
    with ExitStack() as stack:
        for owner, name in methods:
            wrap = partial(_LookupObserver, partial(note, name))
            stack.enter_context(patched(owner, name, wrap, by_code=False))
        yield
