"""Patches of attributes and functions, shared by several users and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from types import FunctionType, ModuleType
from typing import Any

import torch

Wrap = Callable[[Any], Any]  # takes the patched callable and returns its replacement

_lock = threading.RLock()
_patches: dict[tuple[int, str], Patch] = {}


class Patch:
    """A patched attribute with its wrappers, which can be installed and removed in any order and any thread.

    If each user wrapped the current value and restored its previous value, wrappers would remain.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.wraps: list[Wrap] = []
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name)  # None for an object whose class has the attribute
        is_bound = isinstance(self._own, (staticmethod, classmethod))
        is_method = isinstance(owner, type) and self._own is not None and not is_bound
        self._inner = self._own if is_method else getattr(owner, name)
        self._convert: Callable[[Any], Any] = staticmethod if is_bound else lambda outer: outer
        self._ours = [self._own]  # all values set by this patch, as an exception may interrupt a change

    def install(self, wrap: Wrap) -> None:
        """Add a wrapper around the others."""
        self.wraps.append(wrap)
        self._update()

    def remove(self, wrap: Wrap) -> None:
        """Remove a wrapper; restore the attribute if it was the last."""
        if wrap in self.wraps:
            self.wraps.remove(wrap)
        self._update()

    def _update(self) -> None:
        """Set the attribute, unless its value was set by others."""
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


class FunctionPatch(Patch):
    """Patch of the code of a Python function, which applies to every reference to the function.

    Modules import functions from each other, even during a step, and store them in classes, dicts and
    closures.
    """

    def __init__(self, function: FunctionType) -> None:
        self.wraps = []
        self._function, self._code, self._defaults = function, function.__code__, function.__kwdefaults__
        self._inner = FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self._inner.__kwdefaults__ = self._defaults
        # A function accepts code with as many free variables as it has cells.
        self._patched = _call_wrapper.__code__.replace(co_freevars=self._code.co_freevars)

    def _update(self) -> None:
        """Route the function through the wrappers, or restore it."""
        function = self._function
        if self.wraps:  # set the default first: the patched code reads it, the original code ignores it
            function.__kwdefaults__ = {**(self._defaults or {}), "_dtdispatch_wrapper": self._wrapped()}
            function.__code__ = self._patched
        else:
            function.__code__ = self._code
            function.__kwdefaults__ = self._defaults


def _call_wrapper(*args: Any, _dtdispatch_wrapper: Callable[..., Any], **kwargs: Any) -> Any:
    __tracebackhide__ = True
    return _dtdispatch_wrapper(*args, **kwargs)


@contextmanager
def patched(owner: Any, name: str, wrap: Wrap, by_code: bool = False) -> Iterator[None]:
    """Temporarily wrap an attribute.

    For a Python function of a module, or of a class with ``by_code``, this wraps every reference to it.
    """
    value = getattr(owner, name)
    is_shared = (by_code or isinstance(owner, ModuleType)) and type(value) is FunctionType
    key = (id(value), "") if is_shared else (id(owner), name)
    with _lock:
        patch = _patches.get(key) or (FunctionPatch(value) if is_shared else Patch(owner, name))
    try:
        with _lock:
            patch = _patches.setdefault(key, patch)
            patch.install(wrap)
        yield
    finally:
        with _lock:
            patch.remove(wrap)
            if not patch.wraps:
                _patches.pop(key, None)


class Proxy:
    """Replacement of a callable with attributes, such as those of a cache."""

    def __init__(self, inner: Any, method: Callable[..., Any]) -> None:
        self._inner, self._method = inner, method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method with the original callable and the arguments."""
        __tracebackhide__ = True
        return self._method(self._inner, *args, **kwargs)


def calling(method: Callable[..., Any]) -> Wrap:
    """Return a wrap whose replacement calls ``method(inner, ...)``; the method must call ``inner``."""

    def wrap(inner: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:  # has __code__, which torch may read
            __tracebackhide__ = True
            return method(inner, *args, **kwargs)

        return run if hasattr(inner, "__code__") else Proxy(inner, method)

    return wrap


def skipped_by_compiler(function: Any) -> Any:
    """Return a function that the compiler does not trace, with all its callees, if compiled code calls it."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        callback = frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            frames.set_eval_frame(callback)

    frames.skip_code(run.__code__)
    return run


@contextmanager
def kernels_routed(namespace: str, listeners: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Route calls of ops of a namespace through listeners, which get a function that runs the op first.

    The kernels are registered for BackendSelect, a key below autograd for which the ops have no kernels.
    """
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel_of(op: Any, listener: Callable[..., Any]) -> Any:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            return listener(partial(op.redispatch, keys & below), *args, **kwargs)

        return skipped_by_compiler(kernel)

    with torch.library._scoped_library(namespace, "IMPL") as library:
        for op, listener in listeners.items():
            library.impl(op.name(), kernel_of(op, listener), "BackendSelect", with_keyset=True)
        yield


def around_start(on_start: Callable[..., Any]) -> AbstractContextManager[None]:
    """Route starts of processes through ``on_start``, which receives the original method and the process."""
    return patched(BaseProcess, "start", calling(on_start))
