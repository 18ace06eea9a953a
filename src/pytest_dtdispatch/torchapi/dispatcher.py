"""What DTensor's dispatcher does, told as it happens: hooks that are put in for a while, and taken out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.errors import UnsupportedTorchError
from pytest_dtdispatch.torchapi.propagator import redistribute_module
from pytest_dtdispatch.torchapi.shared_hook import SharedHook

Run = Callable[[], Any]
NATIVE_CLEAR = "_clear_DTensor_sharding_propagator_cache"
SLOW_PATH = "_propagate_op_sharding_dispatch_slow_path"
# Where torch has no native cache, what propagation asks for: by the name of newer ones and of old ones.
TENSOR_META = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")
# Names of the communication library's ops, less these, are those of its Python functions.
VARIANTS = ("_coalesced", "_into_tensor", "_tensor", "_base", "_any_source")
SPELLED_APART = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "monitored_barrier": "barrier",
}
NO_COLLECTIVES = ("check_for_nan",)


class Watcher(Protocol):
    """Who is told. Each method makes the call that it is told of, and returns its result."""

    def on_native_miss(self, run: Run) -> Any:
        """The native cache was asked, and had no answer."""

    def on_propagation(self, schema: Any, run: Run) -> Any:
        """Propagation runs, without the Python cache having been asked."""

    def on_python_cache(self, schema: Any, cache: Any) -> Any:
        """The Python cache is asked: call ``cache(schema)``."""

    def on_custom_handler(self, run: Run) -> Any:
        """An op is handled by a function of its own, which asks the propagator or does not."""

    def on_native_clear(self, run: Run) -> Any:
        """The native cache is emptied, and its counters with it."""

    def on_implied(self, schema: Any, run: Run) -> Any:
        """Arguments of an op are redistributed."""

    def on_redistribution(self, source: Any, target: Any, run: Run) -> Any:
        """A local tensor goes from one spec to another."""

    def on_collective(self, kind: str, args: tuple[Any, ...], run: Run) -> Any:
        """A collective runs."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher what DTensor's dispatcher does, in every thread.

    A hit of the native cache passes none of these hooks: it costs what it costs unwatched.
    """
    dispatcher = DTensor._op_dispatcher
    with ExitStack() as hooks:
        for hook in (
            *_native_hooks(dispatcher, watcher),
            *_propagator_hooks(dispatcher.sharding_propagator, watcher),
            _handler_hook(dispatcher._custom_op_handlers, watcher),
            *_redistribution_hooks(dispatcher, watcher),
            _collective_hook(watcher),
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
            wrap = functools.partial(_LookedUp, functools.partial(note, name))
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


def _native_hooks(dispatcher: Any, watcher: Watcher) -> Iterator[AbstractContextManager[Any]]:
    slow_path, clear = getattr(dispatcher, SLOW_PATH, None), getattr(torch._C, NATIVE_CLEAR, None)
    if clear is None:
        return
    if slow_path is None:
        raise UnsupportedTorchError(f"torch {torch.__version__}: steps cannot be counted without {SLOW_PATH}")

    def missed(*args: Any) -> Any:
        *_, try_python_cache = args  # because the native cache could make no key, and was not asked
        if try_python_cache:
            return slow_path(*args)
        return watcher.on_native_miss(lambda: slow_path(*args))

    yield patch.object(dispatcher, SLOW_PATH, missed)
    yield patch.object(torch._C, NATIVE_CLEAR, lambda: watcher.on_native_clear(clear))


def _propagator_hooks(propagator: Any, watcher: Watcher) -> Iterator[AbstractContextManager[Any]]:
    propagate = propagator.propagate_op_sharding_non_cached

    def propagated(schema: Any) -> Any:
        return watcher.on_propagation(schema, lambda: propagate(schema))

    yield patch.object(propagator, "propagate_op_sharding_non_cached", propagated)
    yield patch.object(
        propagator, "propagate_op_sharding", _WatchedCache(propagator.propagate_op_sharding, watcher)
    )


class _WatchedCache:
    """Stands in for the propagator's Python cache."""

    def __init__(self, cache: Any, watcher: Watcher) -> None:
        self._cache = cache
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def __call__(self, schema: Any) -> Any:
        return self._watcher.on_python_cache(schema, self._cache)


@contextmanager
def _handler_hook(handlers: dict[Any, Any], watcher: Watcher) -> Iterator[None]:
    def watched(handler: Any) -> Any:
        return lambda *args, **kwargs: watcher.on_custom_handler(lambda: handler(*args, **kwargs))

    before = dict(handlers)
    handlers.update({op: watched(handler) for op, handler in before.items()})
    try:
        yield
    finally:
        handlers.update(before)


def _redistribution_hooks(dispatcher: Any, watcher: Watcher) -> Iterator[AbstractContextManager[Any]]:
    imply = dispatcher.redistribute_local_args

    def implied(op_info: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.on_implied(schema, lambda: imply(op_info, schema, *args, **kwargs))

    yield patch.object(dispatcher, "redistribute_local_args", implied)
    name = "redistribute_local_tensor"
    home = redistribute_module()
    redistribute = getattr(home, name)

    def redistributed(local: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.on_redistribution(
            source, target, lambda: redistribute(local, source, target, *args, **kwargs)
        )

    for module in list(sys.modules.values()):  # those that import it by name hold it themselves
        if getattr(module, "__dict__", {}).get(name) is redistribute:
            yield patch.object(module, name, redistributed)


@contextmanager
def _collective_hook(watcher: Watcher) -> Iterator[None]:
    """Watch the ops that every collective of torch comes down to, whichever function it was called by.

    Their kernels are reached from the key that selects a backend, at which these ops have none.
    """
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    with torch.library._scoped_library("c10d", "IMPL") as library:
        for op in _collective_ops():
            library.impl(op.name(), _watched_op(op, below, watcher), "BackendSelect", with_keyset=True)
        yield


def _collective_ops() -> Iterator[Any]:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == "c10d" and base not in NO_COLLECTIVES:
            yield getattr(getattr(torch.ops.c10d, base), overload or "default")


def _watched_op(op: Any, below: Any, watcher: Watcher) -> Callable[..., Any]:
    kind = collective_kind(op.name())

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.on_collective(
            kind, (*args, *kwargs.values()), lambda: op.redispatch(keys & below, *args, **kwargs)
        )

    return kernel


def collective_kind(op: str) -> str:
    """Name a collective as the Python function does that runs it, whichever variant it is."""
    name = op.partition("::")[2].partition(".")[0].strip("_")
    for variant in VARIANTS:
        name = name.replace(variant, "")
    return SPELLED_APART.get(name, name)
