"""Hooks in torch: one table of where they may stand, and what puts them in for a while."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

TENSOR, API = "torch.distributed.tensor", "torch.distributed.tensor._api"
REDISTRIBUTE = "torch.distributed.tensor._redistribute"
SIMULATION = "torch.distributed._local_tensor"
COLLECTIVES = "torch.distributed._functional_collectives"
PROFILER = "torch.autograd.profiler"
DISPATCHER, PROPAGATOR = "DTensor._op_dispatcher", "DTensor._op_dispatcher.sharding_propagator"
# What the native dispatcher calls on a miss, where torch has one.
SLOW_PATH = "_propagate_op_sharding_dispatch_slow_path"
NATIVE_CLEAR = "_clear_DTensor_sharding_propagator_cache"
# What propagation asks for, early: by the name of newer versions and of old ones.
TENSOR_META = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")
RUN = "_engine_run_backward"
UNNUMBERED = 2**63  # nodes that accumulate gradients have the greatest number that there is
# Names of the communication library's ops, less these, are those of its Python functions.
VARIANTS = ("_coalesced", "_into_tensor", "_tensor", "_base", "_single", "_any_source", "_anysource")
SPELLED_APART = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "monitored_barrier": "barrier",
}
NO_COLLECTIVES = ("check_for_nan",)
FUNCTIONAL = "_c10d_functional"
COLLECTIVE_SPACES = ("c10d", FUNCTIONAL, "_dtensor")


# Makes of a function of torch what stands in for it.
Wrap = Callable[[Any], Any]


class Point(NamedTuple):
    """Where torch keeps what it calls.

    What this torch lacks, or has not loaded, is no place for a hook, and nothing is imported for one.

    Args:
        modules: the first of them that has the path is meant.
        path: to what has the functions, from there; empty where it is the module.
        names: of the functions.
        is_required: whether every known torch has it.
    """

    modules: tuple[str, ...]
    path: str
    names: tuple[str, ...]
    is_required: bool = False

    def places(self) -> list[tuple[Any, str]]:
        """Find what has the functions, and the names by which it has them."""
        owners = [follow(sys.modules[name], self.path) for name in self.modules if name in sys.modules]
        owner = next((each for each in owners if each is not None), None)
        found = [(owner, name) for name in self.names if hasattr(owner, name)]
        if self.is_required and not found:
            raise AttributeError(f"{self.modules[0]} has no {self.path}.{self.names[0]}")
        return found


def follow(owner: Any, path: str) -> Any:
    """Follow names of attributes, ``a.b``, from what has the first; None where one is not there."""
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name, None)
    return owner


POINTS = {
    # What ops ask of the propagator and its caches. A hit of the native cache passes none of them.
    "native miss": Point((TENSOR,), DISPATCHER, (SLOW_PATH,)),
    "native clear": Point(("torch._C",), "", (NATIVE_CLEAR,)),
    "propagation": Point((TENSOR,), PROPAGATOR, ("propagate_op_sharding_non_cached",), is_required=True),
    "python cache": Point((TENSOR,), PROPAGATOR, ("propagate_op_sharding",), is_required=True),
    "tensor meta": Point((TENSOR,), PROPAGATOR, TENSOR_META),
    # How DTensors come where they are needed.
    "implied": Point((TENSOR,), DISPATCHER, ("redistribute_local_args",), is_required=True),
    "redistribution": Point((REDISTRIBUTE,), "", ("redistribute_local_tensor",), is_required=True),
    # Shard to Shard: on a CPU mesh torch gathers, as gloo had no all_to_all.
    "exchange": Point(("torch.distributed.tensor._collective_utils",), "", ("shard_dim_alltoall",)),
    "planning": Point(
        (REDISTRIBUTE,),
        "",
        ("_gen_transform_infos", "_gen_transform_infos_non_cached", "_optimize_transform_infos"),
    ),
    # Redistributions that torch checks against its ExplicitRedistributionContext, open or not.
    "observed": Point(
        ("torch.distributed.tensor._utils",), "ExplicitRedistributionContext", ("observe_redistribution",)
    ),
    # Is given the output of each collective that Python runs, or a list of them.
    "collective output": Point(
        ("torch.distributed._functional_collectives",),
        "",
        ("_maybe_wrap_tensor", "_maybe_wrap_tensors", "_wrap_tensor_autograd"),
    ),
    # An embedding on a table that is sharded by rows gives a masked partial sum: its placement keeps the mask
    # of the ids until the sum is reduced. The placement stands in a cached plan, and all results of that plan
    # share it: one that is dropped before it is reduced, as that of a repetition is, leaves its mask behind.
    "mask": Point(
        ("torch.distributed.tensor._ops._mask_buffer", "torch.distributed.tensor._ops._embedding_ops"),
        "MaskBuffer",
        ("materialize_mask", "release_mask"),
    ),
    "dispatch": Point((TENSOR,), "DTensor", ("__torch_dispatch__",)),
    "async tensor": Point((COLLECTIVES,), "AsyncCollectiveTensor", ("__torch_dispatch__",)),
    "backward": Point(("torch.autograd.graph",), "", (RUN,), is_required=True),
    "compiled code": Point(("torch._dynamo.eval_frame",), "", ("_maybe_set_eval_frame",)),
    "profiler": Point((PROFILER,), "profile", ("_prepare_trace", "_start_trace")),
    "itt": Point((PROFILER,), "emit_itt", ("__enter__",)),
    "nvtx": Point((PROFILER,), "emit_nvtx", ("__enter__",)),
    "simulation": Point((SIMULATION,), "LocalTensorMode", ("__enter__", "__exit__")),
    "simulated op": Point((SIMULATION,), "LocalTensorMode", ("__torch_dispatch__",)),
}

PROFILERS = ("profiler", "itt", "nvtx")  # points at which a profiler starts


_lock = threading.RLock()
_slots: dict[tuple[int, str], _Slot] = {}


class _Slot:
    """One patched attribute with its wrappers, which come and go in any order and in any thread.

    If each user wrapped the current value and restored the value it had found, wrappers would remain.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.wraps: list[Wrap] = []
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name)  # None for an object whose class has it
        is_bound = isinstance(self._own, (staticmethod, classmethod))
        is_method = isinstance(owner, type) and self._own is not None and not is_bound
        self._inner = self._own if is_method else getattr(owner, name)
        self._convert: Callable[[Any], Any] = staticmethod if is_bound else lambda outer: outer
        self._ours = [self._own]  # all its values: an exception may come while it changes

    def renew(self) -> None:
        """Install the current wrappers or restore the attribute; a value that others installed stays."""
        new = self._convert(self._wrapped()) if self.wraps else self._own
        self._ours.append(new)
        value = vars(self._owner).get(self._name)
        if value is not new and any(value is each for each in self._ours):
            if new is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, new)
        self._ours = [new]

    def _wrapped(self) -> Any:
        outer = self._inner
        for wrap in self.wraps:
            outer = wrap(outer)
        return outer


class _FunctionSlot(_Slot):
    """A Python function, patched by its code, so that every reference to it is patched.

    Modules import functions from each other, within a step too, and store them in classes, dicts, closures.
    """

    def __init__(self, function: FunctionType) -> None:
        self.wraps: list[Wrap] = []
        self._function, self._code, self._defaults = function, function.__code__, function.__kwdefaults__
        self._inner = FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self._inner.__kwdefaults__ = self._defaults
        # A function takes code with as many free variables as it has cells.
        self._patched = _call_wrapper.__code__.replace(co_freevars=self._code.co_freevars)

    def renew(self) -> None:
        """Route the function through the current wrappers, or restore it."""
        function = self._function
        if self.wraps:  # the default first: the original code ignores it, the patched code reads it
            function.__kwdefaults__ = {**(self._defaults or {}), WRAPPER: self._wrapped()}
            function.__code__ = self._patched
        else:
            function.__code__ = self._code
            function.__kwdefaults__ = self._defaults


WRAPPER = "_dtdispatch_wrapper"


def _call_wrapper(*args: Any, _dtdispatch_wrapper: Callable[..., Any], **kwargs: Any) -> Any:
    __tracebackhide__ = True
    return _dtdispatch_wrapper(*args, **kwargs)


@contextmanager
def wrapped(owner: Any, name: str, wrap: Wrap) -> Iterator[None]:
    """Temporarily wrap an attribute; for a Python function of a module, every reference to the function."""
    value = getattr(owner, name)
    is_shared = isinstance(owner, ModuleType) and type(value) is FunctionType
    key = (id(value), "") if is_shared else (id(owner), name)
    with _lock:
        slot = _slots.get(key) or (_FunctionSlot(value) if is_shared else _Slot(owner, name))
    try:
        with _lock:
            slot = _slots.setdefault(key, slot)
            slot.wraps.append(wrap)
            slot.renew()
        yield
    finally:
        with _lock:
            if wrap in slot.wraps:
                slot.wraps.remove(wrap)
            slot.renew()
            if not slot.wraps:
                _slots.pop(key, None)


@contextmanager
def hooked(wraps: Mapping[str, Wrap]) -> Iterator[None]:
    """Let something stand in for a while for what torch calls, by the names of :data:`POINTS`."""
    with ExitStack() as stack:
        for point, wrap in wraps.items():
            for owner, name in POINTS[point].places():
                stack.enter_context(wrapped(owner, name, wrap))
        yield


def listening(point: str, listener: Callable[..., object]) -> AbstractContextManager[None]:
    """Call a listener at each call of this thread, right before it is made, with its arguments."""
    home = threading.get_ident()

    def wrap(inner: Any) -> Any:
        def heard(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == home:
                listener(*args)
            return inner(*args, **kwargs)

        return heard

    return hooked({point: wrap})


class StandIn:
    """Stands in for a function that has attributes of its own, as one with a cache has."""

    def __init__(self, inner: Any, outer: Callable[..., Any]) -> None:
        self._inner = inner
        self._outer = outer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what stands in for it."""
        __tracebackhide__ = True
        return self._outer(*args, **kwargs)


def handed_to(method: Callable[..., Any]) -> Wrap:
    """Hand a function of torch, and what it is called with, to a method that makes the call."""

    def wrap(inner: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:  # where there is code, torch may look for it
            __tracebackhide__ = True
            return method(inner, *args, **kwargs)

        return run if hasattr(inner, "__code__") else StandIn(inner, partial(method, inner))

    return wrap


def handed(methods: Mapping[str, Callable[..., Any]]) -> AbstractContextManager[None]:
    """Hand what torch calls to methods for a while, by the names of :data:`POINTS`."""
    return hooked({point: handed_to(method) for point, method in methods.items()})


@functools.cache  # asked first before a hook stands there, whose code all hooks share
def engine_code() -> Any:
    """Return the code of the function that runs the engine; below it on the stack is what called it."""
    return getattr(torch.autograd.graph, RUN).__code__


def is_in_backward() -> bool:
    """Return whether the engine runs in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def next_node_number() -> int:
    """Return the number that the next node gets which this thread makes."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def running_node() -> Any:
    """Return the node that the engine is at in this thread; None where it is at none."""
    return torch._C._current_autograd_node() if is_in_backward() else None


def number_of(node: Any) -> int | None:
    """Return the number of a node, counted by the thread that made it; None of one without a number."""
    number = int(node._sequence_nr())
    return number if number < UNNUMBERED else None


class Conversion(str, Enum):
    """What a conversion does."""

    WRAP = "wrap"
    UNWRAP = "unwrap"
    REDISTRIBUTE = "redistribute"

    __str__ = str.__str__


class Converter(NamedTuple):
    """A function of torch that converts.

    Args:
        what: it does.
        name: by which users know it: ``from_local``; in backward that of the forward function.
        is_backward: whether it is the backward function of it.
    """

    what: Conversion
    name: str
    is_backward: bool = False


WRAP, UNWRAP, REDISTRIBUTED = Conversion
FSDP = "torch.distributed.fsdp._fully_shard._fsdp_common"


def _of_autograd(owner: str, method: str) -> Point:
    """Return the point of a function of autograd's, which every known torch has in one of two modules."""
    return Point((API, REDISTRIBUTE), owner, (method,), is_required=True)


# What users call is left as it is, where autograd has a function of it: compiled code is guarded on it.
CONVERTERS = (
    (_of_autograd("_FromTorchTensor", "forward"), Converter(WRAP, "from_local")),
    (_of_autograd("_FromTorchTensor", "backward"), Converter(UNWRAP, "from_local", is_backward=True)),
    (_of_autograd("_ToTorchTensor", "forward"), Converter(UNWRAP, "to_local")),
    (_of_autograd("_ToTorchTensor", "backward"), Converter(WRAP, "to_local", is_backward=True)),
    (_of_autograd("Redistribute", "forward"), Converter(REDISTRIBUTED, "redistribute")),
    (_of_autograd("Redistribute", "backward"), Converter(REDISTRIBUTED, "redistribute", is_backward=True)),
    (Point((API,), "", ("distribute_tensor",)), Converter(WRAP, "distribute_tensor")),
    (Point((FSDP,), "", ("_from_local_no_grad",)), Converter(WRAP, "DTensor")),
)


@contextmanager
def watching_conversions(watcher: Any, of: Collection[Conversion] = tuple(Conversion)) -> Iterator[None]:
    """Hand each conversion of some kinds to a watcher.

    It is told by ``watcher.on_conversion(converter, function, *args, **kwargs)``, and makes the call. Where
    torch converts inside of a conversion, as ``to_local`` does in backward by ``from_local``, it is told of
    both, the outer one first. A backward function without a gradient does nothing, and is told of too.
    Without grad, ``to_local`` hands out the local tensor, which is no call.
    """
    with ExitStack() as hooks:
        for point, converter in CONVERTERS:
            if converter.what in of:
                for owner, name in point.places():
                    wrap = handed_to(partial(watcher.on_conversion, converter))
                    hooks.enter_context(wrapped(owner, name, wrap))
        yield


@contextmanager
def watching_ops(watcher: Any) -> Iterator[None]:
    """Hand to a watcher what ops ask of the propagator and its caches, in every thread.

    Methods of the watcher, ``on_`` and what happens, are given the function of torch, and what it is called
    with.
    """
    dispatcher = DTensor._op_dispatcher
    if hasattr(torch._C, NATIVE_CLEAR):
        getattr(dispatcher, SLOW_PATH)  # without it no miss would be counted
    methods = {
        "native miss": partial(_missed, watcher),
        "native clear": watcher.on_native_clear,
        "propagation": watcher.on_propagation,
        "python cache": watcher.on_python_cache,
        "tensor meta": watcher.on_tensor_meta,
    }
    with handed(methods), _handler_hook(dispatcher._custom_op_handlers, watcher):
        yield


def _missed(watcher: Any, slow_path: Any, *args: Any) -> Any:
    *_, try_python_cache = args  # because the native cache could make no key, and was not asked
    return slow_path(*args) if try_python_cache else watcher.on_native_miss(slow_path, *args)


class _LookedUp:
    """Stands in for a method in its class, and tells when it is looked up on an object."""

    def __init__(self, note: Callable[[], None], method: Any) -> None:
        self._note = note
        self._method = method

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None:
            self._note()
        return self._method.__get__(instance, owner)


@contextmanager
def _handler_hook(handlers: dict[Any, Any], watcher: Any) -> Iterator[None]:
    before = dict(handlers)
    handlers.update({op: partial(watcher.on_custom_handler, handler) for op, handler in before.items()})
    try:
        yield
    finally:
        handlers.update(before)


@contextmanager
def watching_transfers(watcher: Any) -> Iterator[None]:
    """Hand to a watcher, in the same way, redistributions, collectives, wraps and unwraps."""
    for loaded_on_first_use in (SIMULATION, FSDP):  # a step may be the first to import it
        _module(loaded_on_first_use)
    methods = {
        "implied": watcher.on_implied,
        "redistribution": watcher.on_redistribution,
        "exchange": watcher.on_exchange,
        "observed": watcher.on_observation,
        "simulated op": partial(_on_simulated, watcher),
    }
    with handed(methods), _watching_collectives(watcher), watching_conversions(watcher):
        yield


@contextmanager
def noticing_propagations(note: Callable[[str], None]) -> Iterator[None]:
    """Note each propagation right before it runs, in its thread; a hit is not noted.

    What torch calls is looked up on a class, and that is when it is told: a wrapper would stand in the call,
    and each frame between an op and its propagation makes the propagation slower.
    """
    dispatcher = DTensor._op_dispatcher
    places: list[tuple[type, str]] = [(type(dispatcher), SLOW_PATH)]
    if SLOW_PATH not in vars(type(dispatcher)):
        propagator = type(dispatcher.sharding_propagator)
        places = [(propagator, name) for name in TENSOR_META if name in vars(propagator)]
    with ExitStack() as hooks:
        for owner, name in places:
            hooks.enter_context(wrapped(owner, name, partial(_LookedUp, partial(note, name))))
        yield


@contextmanager
def _watching_collectives(watcher: Any) -> Iterator[None]:
    """Watch the ops of collectives, and what runs collectives without coming to those ops."""
    kinds = _collective_kinds()
    # Collectives of torch come down to these ops, whichever function they were called by. Their kernels are
    # reached from the key that selects a backend, at which these ops have none.
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    with ExitStack() as hooks:
        library = hooks.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        for op in _collective_ops():
            library.impl(op.name(), _watched_op(op, below, watcher), "BackendSelect", with_keyset=True)
        # On meta functional collectives end at kernels of their own, which come to none of these ops.
        library = hooks.enter_context(torch.library._scoped_library(FUNCTIONAL, "IMPL"))
        for op in filter(collective_of, _collective_ops(FUNCTIONAL)):
            kernel = _watched_op(op, below, watcher, _is_on_meta)
            library.impl(op.name(), kernel, "BackendSelect", with_keyset=True)
        for group in _derived_from(torch.distributed.ProcessGroup):  # none of C++ has functions of Python
            for name, method in list(vars(group).items()):
                if isinstance(method, FunctionType) and (kind := collective_kind(name)) in kinds:
                    hooks.enter_context(wrapped(group, name, handed_to(partial(_on_method, kind, watcher))))
        yield


def _derived_from(kind: Any) -> Iterator[Any]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _derived_from(derived)


@functools.cache  # to ask for the names of all ops takes milliseconds, and torch loads those of c10d at once
def _collective_ops(space: str = "c10d") -> tuple[Any, ...]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == space and base not in NO_COLLECTIVES:
            found.append(getattr(getattr(getattr(torch.ops, space), base), overload or "default"))
    return tuple(found)


def _watched_op(
    op: Any, below: Any, watcher: Any, is_watched: Callable[[Any], bool] = lambda args: True
) -> Callable[..., Any]:
    kind = collective_kind(op.name())

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        run = partial(op.redispatch, keys & below)
        return watcher.on_collective(kind, run, *args, **kwargs) if is_watched(args) else run(*args, **kwargs)

    return kernel


def _is_on_meta(args: Any) -> bool:
    """Tell whether a tensor is on meta by itself, and no fake tensor, which says so inside of kernels."""
    return any(type(leaf) is torch.Tensor and leaf.is_meta for leaf in tree_leaves(args))


def _on_method(kind: str, watcher: Any, method: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
    return watcher.on_collective(kind, partial(method, group), *args, **kwargs)


def _on_simulated(
    watcher: Any, dispatch: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        return dispatch(mode, func, types, args, kwargs)

    if kind := collective_of(func):
        return watcher.on_collective(kind, call, *args, **kwargs or {})
    return call()


def collective_of(func: Any) -> str:
    """Name the collective that an op runs; empty where it runs none."""
    is_known = getattr(func, "namespace", "") in COLLECTIVE_SPACES
    kind = collective_kind(func.name()) if is_known else ""
    return kind if kind in _collective_kinds() else ""


@functools.cache
def _collective_kinds() -> frozenset[str]:
    return frozenset(collective_kind(op.name()) for op in _collective_ops())


def collective_kind(op: str) -> str:
    """Name a collective as the Python function does that runs it, whichever variant it is."""
    name = op.rpartition("::")[2].partition(".")[0].strip("_")
    for variant in VARIANTS:
        name = name.replace(variant, "")
    return SPELLED_APART.get(name, name)


@functools.cache
def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def local_mode_type() -> Any:
    """Return the class of that mode; None where this torch has none."""
    return getattr(_module(SIMULATION), "LocalTensorMode", None)


def redistribute_module() -> Any:
    """Return the module in which DTensors are redistributed."""
    return importlib.import_module(REDISTRIBUTE)
