"""What torch does, told as it happens: hooks that are put in for a while, and taken out."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from enum import Enum
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor


class SharedHook:
    """An attribute that is wrapped as long as anybody uses the wrapper, in whichever thread.

    Users may come and go in any order: each of them wrapping what the one before left, and putting back what
    it found, would leave wrappers behind.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._lock = threading.Lock()
        self._users = 0
        self._wrapper: Any = None
        self._patch: Any = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the wrapper for a while."""
        with self._lock:
            if not self._users:
                self._put_in()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._take_out()

    def _put_in(self) -> None:
        is_class = isinstance(self._owner, type)
        inner = vars(self._owner)[self._name] if is_class else getattr(self._owner, self._name)
        self._wrapper = self._wrap(inner)
        self._patch = patch.object(self._owner, self._name, self._wrapper)
        self._patch.__enter__()

    def _take_out(self) -> None:
        if vars(self._owner).get(self._name) is self._wrapper:  # else somebody wrapped it since, and holds it
            self._patch.__exit__(None, None, None)
        self._wrapper = self._patch = None


class _Listeners(threading.local):
    """Who listens in this thread."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Any], object]] = []


class CallHook:
    """Tells of each call of some functions, right before it is made, who listens in the same thread."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self._here = _Listeners()
        self._hooks = [SharedHook(owner, name, self._told) for name in names]

    @contextmanager
    def telling(self, listener: Callable[[Any], object]) -> Iterator[None]:
        """Give a listener the first argument of each call."""
        with ExitStack() as stack:
            for hook in self._hooks:
                stack.enter_context(hook.in_place())
            self._here.listeners.append(listener)
            stack.callback(self._here.listeners.remove, listener)
            yield

    def _told(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def told(first: Any, *args: Any, **kwargs: Any) -> Any:
            for listener in self._here.listeners:
                listener(first)
            return inner(first, *args, **kwargs)

        return told


def held_by_name(name: str, inner: Any, outer: Any) -> Iterator[AbstractContextManager[Any]]:
    """Replace a function in every module that holds it by its name, where it is defined and imported.

    A module that is imported meanwhile may take the replacement from one of them: it is given the function
    at the end.
    """
    yield _given_back(name, inner, outer)  # entered first, and so left when all others are
    for module in _holders(name, inner):
        yield patch.object(module, name, outer)


@contextmanager
def _given_back(name: str, inner: Any, outer: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for module in _holders(name, outer):
            setattr(module, name, inner)


def _holders(name: str, held: Any) -> list[Any]:
    """Find modules that hold a thing; there are thousands: nothing is called for one without the name."""
    found = []
    for module in list(sys.modules.values()):
        try:
            if name in module.__dict__ and module.__dict__[name] is held:
                found.append(module)
        except AttributeError:  # what stands for a module need not be one
            continue
    return found


RUN = "_engine_run_backward"
UNNUMBERED = 2**63  # nodes that accumulate gradients have the greatest number that there is


def engine_code() -> Any:
    """Return the code of the function that runs the engine; below it on the stack is what called it."""
    return getattr(torch.autograd.graph, RUN).__code__


def is_in_backward() -> bool:
    """Tell whether the engine runs in this thread."""
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


def parameter_of(node: Any) -> Any:
    """Return the leaf whose gradient a node accumulates; None of any other node."""
    return getattr(node, "variable", None)


@contextmanager
def watching_backward(watcher: Any) -> Iterator[None]:
    """Tell a watcher of each run of the engine, which it makes: ``watcher.on_backward(run, *args)``."""
    run = getattr(torch.autograd.graph, RUN)
    watched = partial(watcher.on_backward, run)

    def backward(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return watched(*args, **kwargs)

    with ExitStack() as hooks:
        for hook in held_by_name(RUN, run, backward):
            hooks.enter_context(hook)
        yield


API = "torch.distributed.tensor._api"
FSDP = "torch.distributed.fsdp._fully_shard._fsdp_common"


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


# Functions of autograd's, by their class. What users call is left as it is: compiled code is guarded on it.
_FUNCTIONS = {
    "_FromTorchTensor": (
        Converter(Conversion.WRAP, "from_local"),
        Converter(Conversion.UNWRAP, "from_local", is_backward=True),
    ),
    "_ToTorchTensor": (
        Converter(Conversion.UNWRAP, "to_local"),
        Converter(Conversion.WRAP, "to_local", is_backward=True),
    ),
    "Redistribute": (
        Converter(Conversion.REDISTRIBUTE, "redistribute"),
        Converter(Conversion.REDISTRIBUTE, "redistribute", is_backward=True),
    ),
}
# Plain functions, by module and name, with the name that users know: those of FSDP2 have none.
_PLAIN = (
    (API, "distribute_tensor", Converter(Conversion.WRAP, "distribute_tensor")),
    (FSDP, "_from_local_no_grad", Converter(Conversion.WRAP, "DTensor")),
)


def conversion_hooks(
    watcher: Any, of: Collection[Conversion] = tuple(Conversion)
) -> Iterator[AbstractContextManager[Any]]:
    """Tell a watcher of each conversion of some kinds.

    It is told by ``watcher.on_conversion(converter, function, *args, **kwargs)``, and makes the call. Where
    torch converts inside of a conversion, as ``to_local`` does in backward by ``from_local``, it is told of
    both, the outer one first. A backward function without a gradient does nothing, and is told of too.
    Without grad, ``to_local`` hands out the local tensor, which is no call.
    """
    for name, (forward, backward) in _FUNCTIONS.items():
        owner = _function_class(name)
        for method, converter in (("forward", forward), ("backward", backward)):
            if converter.what not in of:
                continue
            inner = getattr(owner, method)
            told = wrapped_by(watcher, converter, inner)
            yield patch.object(owner, method, staticmethod(told))
    for module, name, converter in _PLAIN:
        inner = getattr(sys.modules.get(module), name, None)
        if inner is not None:
            yield from held_by_name(name, inner, wrapped_by(watcher, converter, inner))


def _function_class(name: str) -> Any:
    """Find a class of autograd functions: every known torch has each of them, in one of two modules."""
    return getattr(importlib.import_module(API), name, None) or getattr(redistribute_module(), name)


def wrapped_by(watcher: Any, converter: Converter, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of Python that a watcher is told of, as torch looks for code in what it calls."""
    told = watcher.on_conversion

    def converted(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return told(converter, inner, *args, **kwargs)

    return converted


NATIVE_CLEAR = "_clear_DTensor_sharding_propagator_cache"
# What propagation asks for, early: by the name of newer versions and of old ones.
TENSOR_META = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")
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
COLLECTIVE_SPACES = ("c10d", "_c10d_functional", "_dtensor")


@contextmanager
def watching_ops(watcher: Any) -> Iterator[None]:
    """Tell a watcher what ops ask of the propagator and its caches, in every thread.

    Functions that torch calls are replaced by methods of the watcher, ``on_`` and what happens: each is given
    the function, and what it is called with. A hit of the native cache passes none of these hooks: it costs
    what it costs unwatched.
    """
    dispatcher = DTensor._op_dispatcher
    with ExitStack() as hooks:
        for hook in (
            *_native_hooks(dispatcher, watcher),
            *_propagator_hooks(dispatcher.sharding_propagator, watcher),
            _handler_hook(dispatcher._custom_op_handlers, watcher),
        ):
            hooks.enter_context(hook)
        yield


@contextmanager
def watching_transfers(watcher: Any) -> Iterator[None]:
    """Tell a watcher, in the same way, of redistributions, collectives, wraps and unwraps."""
    with ExitStack() as hooks:
        for hook in (
            *_redistribution_hooks(DTensor._op_dispatcher, watcher),
            *_collective_hooks(watcher),
            *conversion_hooks(watcher),
        ):
            hooks.enter_context(hook)
        yield


@contextmanager
def noticing_propagations(note: Callable[[str], None]) -> Iterator[None]:
    """Be told right before each propagation, in the thread that runs it; a hit tells nothing.

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
            wrap = partial(_LookedUp, partial(note, name))
            hooks.enter_context(SharedHook(owner, name, wrap).in_place())
        yield


class _LookedUp:
    """Stands in for a method in its class, and tells when it is looked up on an object."""

    def __init__(self, note: Callable[[], None], method: Any) -> None:
        self._note = note
        self._method = method

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None:
            self._note()
        return self._method.__get__(instance, owner)


def _native_hooks(dispatcher: Any, watcher: Any) -> Iterator[AbstractContextManager[Any]]:
    if (clear := getattr(torch._C, NATIVE_CLEAR, None)) is None:
        return
    slow_path = getattr(dispatcher, SLOW_PATH)

    def missed(*args: Any) -> Any:
        *_, try_python_cache = args  # because the native cache could make no key, and was not asked
        if try_python_cache:
            return slow_path(*args)
        return watcher.on_native_miss(slow_path, *args)

    yield patch.object(dispatcher, SLOW_PATH, missed)
    yield patch.object(torch._C, NATIVE_CLEAR, partial(watcher.on_native_clear, clear))


def _propagator_hooks(propagator: Any, watcher: Any) -> Iterator[AbstractContextManager[Any]]:
    propagate, cache = propagator.propagate_op_sharding_non_cached, propagator.propagate_op_sharding
    propagated = partial(watcher.on_propagation, propagate)
    yield patch.object(propagator, "propagate_op_sharding_non_cached", propagated)
    yield patch.object(propagator, "propagate_op_sharding", _WatchedCache(cache, watcher.on_python_cache))
    for name in (name for name in TENSOR_META if hasattr(propagator, name)):
        yield patch.object(propagator, name, _WatchedCache(getattr(propagator, name), watcher.on_tensor_meta))


class _WatchedCache:
    """Stands in for a cache of the propagator's."""

    def __init__(self, cache: Any, watch: Callable[..., Any]) -> None:
        self._cache = cache
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def __call__(self, schema: Any) -> Any:
        return self._watch(self._cache, schema)


@contextmanager
def _handler_hook(handlers: dict[Any, Any], watcher: Any) -> Iterator[None]:
    before = dict(handlers)
    handlers.update({op: partial(watcher.on_custom_handler, handler) for op, handler in before.items()})
    try:
        yield
    finally:
        handlers.update(before)


def _redistribution_hooks(dispatcher: Any, watcher: Any) -> Iterator[AbstractContextManager[Any]]:
    implied = partial(watcher.on_implied, dispatcher.redistribute_local_args)
    yield patch.object(dispatcher, "redistribute_local_args", implied)
    name = "redistribute_local_tensor"
    redistribute = getattr(redistribute_module(), name)
    yield from held_by_name(name, redistribute, partial(watcher.on_redistribution, redistribute))


def _collective_hooks(watcher: Any) -> Iterator[AbstractContextManager[Any]]:
    """Watch the ops of collectives, and what runs collectives without coming to those ops."""
    yield _collective_op_hook(watcher)
    kinds = _collective_kinds()
    for group in _derived_from(torch.distributed.ProcessGroup):  # none of C++ has functions of Python
        for name, method in list(vars(group).items()):
            if isinstance(method, FunctionType) and (kind := collective_kind(name)) in kinds:
                yield patch.object(group, name, _watched_method(method, kind, watcher))
    if mode := local_mode_type():
        dispatch = _watched_simulation(mode.__torch_dispatch__, watcher)
        yield patch.object(mode, "__torch_dispatch__", dispatch)


def _derived_from(kind: Any) -> Iterator[Any]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _derived_from(derived)


@contextmanager
def _collective_op_hook(watcher: Any) -> Iterator[None]:
    """Watch the ops that collectives of torch come down to, whichever function they were called by.

    Their kernels are reached from the key that selects a backend, at which these ops have none.
    """
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    with torch.library._scoped_library("c10d", "IMPL") as library:
        for op in _collective_ops():
            library.impl(op.name(), _watched_op(op, below, watcher), "BackendSelect", with_keyset=True)
        yield


@functools.cache  # to ask for the names of all ops takes milliseconds, and torch loads those of c10d at once
def _collective_ops() -> tuple[Any, ...]:
    names = (
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if _is_collective(name)
    )
    return tuple(
        getattr(getattr(torch.ops.c10d, base), overload or "default")
        for base, _, overload in (name.partition(".") for name in names)
    )


def _is_collective(name: str) -> bool:
    namespace, _, rest = name.partition("::")
    return namespace == "c10d" and rest.partition(".")[0] not in NO_COLLECTIVES


def _watched_op(op: Any, below: Any, watcher: Any) -> Callable[..., Any]:
    kind = collective_kind(op.name())

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.on_collective(kind, partial(op.redispatch, keys & below), *args, **kwargs)

    return kernel


def _watched_method(method: Any, kind: str, watcher: Any) -> Callable[..., Any]:
    def run(group: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.on_collective(kind, partial(method, group), *args, **kwargs)

    return run


def _watched_simulation(dispatch: Any, watcher: Any) -> Callable[..., Any]:
    def run(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            return dispatch(mode, func, types, args, kwargs)

        if not (kind := collective_of(func)):
            return call()
        return watcher.on_collective(kind, call, *args, **kwargs or {})

    return run


def collective_of(func: Any) -> str:
    """Name the collective that an op runs; empty where it runs none."""
    is_known = getattr(func, "namespace", "") in COLLECTIVE_SPACES
    kind = collective_kind(func.name()) if is_known else ""
    return kind if kind in _collective_kinds() else ""


@functools.cache
def _collective_kinds() -> frozenset[str]:
    return frozenset(collective_kind(op.name()) for op in _collective_ops())


@contextmanager
def noticing_redistributions(note: Callable[[Any, Any], object]) -> Iterator[None]:
    """Be told of each redistribution of this thread: what says where the tensor lives, and where it shall."""
    name, home = "redistribute_local_tensor", threading.get_ident()
    redistribute = getattr(redistribute_module(), name)

    def told(local: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == home and tuple(source.placements) != tuple(target.placements):
            note(source, target)
        return redistribute(local, source, target, *args, **kwargs)

    with ExitStack() as hooks:
        for hook in held_by_name(name, redistribute, told):
            hooks.enter_context(hook)
        yield


def collective_kind(op: str) -> str:
    """Name a collective as the Python function does that runs it, whichever variant it is."""
    name = op.rpartition("::")[2].partition(".")[0].strip("_")
    for variant in VARIANTS:
        name = name.replace(variant, "")
    return SPELLED_APART.get(name, name)


# What the native dispatcher calls on a miss, where torch has one.
SLOW_PATH = "_propagate_op_sharding_dispatch_slow_path"


def redistribute_module() -> Any:
    """Return the module in which DTensors are redistributed."""
    return importlib.import_module("torch.distributed.tensor._redistribute")


WRAP = "_maybe_wrap_tensor"  # is given the output of each collective that Python runs


@contextmanager
def noting_collectives(outputs: list[torch.Tensor]) -> Iterator[None]:
    """Note the output of each collective that is run from Python, for a while."""

    def noted(inner: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def wrap(output: torch.Tensor) -> Any:
            outputs.append(output)
            return inner(output)

        return wrap

    collectives = importlib.import_module("torch.distributed._functional_collectives")
    with SharedHook(collectives, WRAP, noted).in_place() if hasattr(collectives, WRAP) else nullcontext():
        yield


MASK_HOMES = ("torch.distributed.tensor._ops._mask_buffer", "torch.distributed.tensor._ops._embedding_ops")


MASK_METHODS = ("materialize_mask", "release_mask")


def mask_buffer_type() -> type | None:
    """Find the class of what keeps a mask in a placement; None where this torch has none."""
    for home in MASK_HOMES:
        with suppress(ImportError):
            kind = getattr(importlib.import_module(home), "MaskBuffer", None)
            if isinstance(kind, type):
                return kind
    return None


# Tells of every mask buffer before it changes. An embedding on a table that is sharded by rows gives a masked
# partial sum: its placement keeps the mask of the ids until the sum is reduced. The placement stands in a
# cached plan, and all results of that plan share it: one that is dropped before it is reduced, as that of a
# repetition is, leaves its mask behind.
_kind = mask_buffer_type()


mask_hook = CallHook(_kind, MASK_METHODS if _kind else ())


@functools.cache
def local_mode_type() -> Any:
    """Return the class of that mode; None where this torch has none."""
    try:
        module = importlib.import_module("torch.distributed._local_tensor")
    except ImportError:
        return None
    return getattr(module, "LocalTensorMode", None)
