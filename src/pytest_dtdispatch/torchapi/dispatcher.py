"""What DTensor's dispatcher does, told as it happens: hooks that are put in for a while, and taken out."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.conversions import conversion_hooks
from pytest_dtdispatch.torchapi.process_groups import local_mode_type
from pytest_dtdispatch.torchapi.propagator import SLOW_PATH, redistribute_module
from pytest_dtdispatch.torchapi.shared_hook import SharedHook, held_by_name

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
    slow_path, clear = getattr(dispatcher, SLOW_PATH, None), getattr(torch._C, NATIVE_CLEAR, None)
    if clear is None:
        return
    if slow_path is None:
        raise UnsupportedTorchError(f"torch {torch.__version__}: steps cannot be counted without {SLOW_PATH}")

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
