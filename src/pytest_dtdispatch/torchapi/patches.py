"""Patches of attributes and functions, shared by several users and threads.

A program does not notice them: a patched function keeps its identity, and any other replacement equals the
original, has its attributes, and is pickled like it.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from multiprocessing.process import BaseProcess
from types import FunctionType, MethodDescriptorType, MethodType
from typing import Any, NamedTuple

import torch

Wrap = Callable[[Any], Any]  # takes the patched callable and returns its replacement

_lock = threading.RLock()
_patches: dict[tuple[int, str], Patch] = {}
# True for any argument if a function mode is open.
has_torch_function: Callable[[tuple[Any, ...]], bool] = torch.overrides.has_torch_function


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


class Patch:
    """A patched attribute with its wrappers, which can be installed and removed in any order and any thread.

    If each user wrapped the current value and restored its previous value, wrappers would remain.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.wraps: list[Wrap] = []
        self._owner, self._name = owner, name
        found = vars(owner).get(name)
        self._own = _original(found)  # None for an object whose class has the attribute
        is_bound = isinstance(self._own, (staticmethod, classmethod))
        is_method = isinstance(owner, type) and self._own is not None and not is_bound
        self._inner = self._own if is_method else _original(getattr(owner, name))
        self._ours = [found]  # all values set by this patch, as an exception may interrupt a change

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
        for each in self._ours[:-1]:
            if type(each) in (BoundReplacement, Proxy):
                each._is_on = False
        self._ours = [new]

    def _wrapped(self) -> Any:
        outer = self._inner
        for wrap in self.wraps:
            outer = wrap(outer)
        return outer

    def _convert(self, outer: Any) -> Any:
        """Return the value of the attribute: a replacement that equals the original."""
        inner = self._inner
        if isinstance(inner, MethodDescriptorType):
            return BoundReplacement(inner, update_wrapper(outer, inner))
        if isinstance(self._owner, type) and not inspect.isbuiltin(inner):
            is_bound = isinstance(self._own, (staticmethod, classmethod))
            return staticmethod(outer) if is_bound else outer
        return outer if isinstance(outer, Proxy) else Proxy(inner, _Routes.of(inner, outer).checked)


class FunctionPatch(Patch):
    """Patch of the code of a Python function, which applies to every reference to the function.

    Modules import functions from each other, even during a step, and store them in classes, dicts and
    closures.
    """

    def __init__(self, function: FunctionType) -> None:
        self.wraps = []
        self._function, self._code, self._defaults = function, function.__code__, function.__kwdefaults__
        self._unwrapped = vars(function).get("__wrapped__")
        self._inner = FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self._inner.__kwdefaults__ = self._defaults
        for name in WRAPPER_ASSIGNMENTS:  # errors show the qualified name
            setattr(self._inner, name, getattr(function, name))
        vars(self._inner).update(vars(function))
        # A function accepts code with as many free variables as it has cells.
        self._patched = _call_wrapper.__code__.replace(co_freevars=self._code.co_freevars)

    def _update(self) -> None:
        """Route the function through the wrappers, or restore it."""
        function = self._function
        if self.wraps:  # set the default first: the patched code reads it, the original code ignores it
            routes = _Routes.of(self._inner, self._wrapped())
            function.__kwdefaults__ = {**(self._defaults or {}), "_dtdispatch_routes": routes}
            function.__code__ = self._patched
            vars(function)["__wrapped__"] = self._inner  # for `inspect.signature` and `inspect.getsource`
        else:
            function.__code__ = self._code
            function.__kwdefaults__ = self._defaults
            vars(function).pop("__wrapped__", None)
            if self._unwrapped is not None:
                vars(function)["__wrapped__"] = self._unwrapped


def _call_wrapper(*args: Any, _dtdispatch_routes: _Routes, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    wrapper, checked, counts = _dtdispatch_routes
    return checked(*args, **kwargs) if kwargs or len(args) not in counts else wrapper(*args)


@contextmanager
def patched(owner: Any, name: str, wrap: Wrap, by_code: bool = True) -> Iterator[None]:
    """Temporarily wrap an attribute.

    For a Python function, this wraps every reference to it, unless ``by_code`` is False. A method that a
    class inherits is replaced in the class only, and a method of an object for this object only.
    """
    value = getattr(owner, name)
    own = vars(owner).get(name) if isinstance(owner, type) else value
    function: Any = own.__func__ if isinstance(own, (staticmethod, classmethod)) else own
    is_shared = by_code and type(function) is FunctionType
    key = (id(function), "") if is_shared else (id(owner), name)
    with _lock:
        patch = _patches.get(key) or (FunctionPatch(function) if is_shared else Patch(owner, name))
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


class BoundReplacement:
    """Replacement of a C method of a class: its objects get a wrapper, and the class gets the original.

    Programs and function modes look up the method of the class. They call it without the wrapper. A program
    may read the replacement from the class's dict, and restore it later: without a patch it is the original.
    """

    def __init__(self, original: Any, wrapper: Any) -> None:
        self._original, self._wrapper, self._is_on = original, wrapper, True

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self._original
        return MethodType(self._wrapper, instance) if self._is_on else self._original.__get__(instance, owner)

    __get__ = skipped_by_compiler(__get__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
        __tracebackhide__ = True
        return self._original(*args, **kwargs)


class Proxy:
    """Replacement of a callable that equals the original, has its attributes, and is pickled like it."""

    def __init__(self, inner: Any, call: Callable[..., Any]) -> None:
        self._inner, self._call, self._is_on = inner, call, True
        vars(self).update({name: getattr(inner, name, None) for name in ("__doc__", "__module__")})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._inner.__class__

    def __eq__(self, other: object) -> bool:
        return bool(self._inner == other)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._inner.__reduce_ex__(protocol)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the replacement; without a patch, the original."""
        __tracebackhide__ = True
        return (self._call if self._is_on else self._inner)(*args, **kwargs)


def _original(value: Any) -> Any:
    """Return the original of a replacement that a program has restored; None for a method of a base class."""
    if type(value) is Proxy:
        return value._inner
    return None if type(value) is BoundReplacement else value


class _Routes(NamedTuple):
    """Where a call of a patched function goes.

    Args:
        wrapper: function for correct calls; it takes positional arguments.
        checked: function that passes wrong calls to the original, which raises its own error.
        counts: valid numbers of positional arguments.
    """

    wrapper: Any
    checked: Any
    counts: range

    @classmethod
    def of(cls, inner: Any, outer: Any) -> _Routes:
        """Return the routes to a wrapper of a Python function or method."""
        function, is_bound = inspect.unwrap(inner), isinstance(inner, MethodType)
        code = function.__code__
        count = code.co_argcount
        names = code.co_varnames[is_bound:count]
        keywords = frozenset(code.co_varnames[count : count + code.co_kwonlyargcount])
        takes_more, takes_others = code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS
        required = len(names) - len(function.__defaults__ or ())
        counts = range(required, sys.maxsize if takes_more else len(names) + 1)

        def checked(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            for name in names[len(args) :]:
                if name not in kwargs:
                    break
                args = (*args, kwargs.pop(name))
            is_valid = len(args) in counts
            if kwargs and not takes_others:
                is_valid &= kwargs.keys() <= keywords | {*names[len(args) :]}
            return (outer if is_valid else inner)(*args, **kwargs)

        return cls(outer, checked, counts)


def call_hidden(method: Callable[..., Any], inner: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``method(inner, ...)`` hidden from ``__torch_function__`` of the program, except ``inner``."""
    __tracebackhide__ = True
    is_enabled = torch._C._is_torch_function_enabled()
    subclasses = nullcontext if is_enabled else torch._C.DisableTorchFunctionSubclass

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with torch._C._EnableTorchFunction(), subclasses():
            return inner(*args, **kwargs)

    with torch._C.DisableTorchFunction():
        return method(Proxy(inner, call), *args, **kwargs)


def calling(method: Callable[..., Any], is_hidden: bool = True) -> Wrap:
    """Return a wrap whose replacement calls ``method(inner, ...)``; the method must call ``inner``.

    A method is hidden from function modes of the program, unless it repeats calls, which hides more.
    """

    def wrap(inner: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if is_hidden and has_torch_function((None,)):
                return call_hidden(method, inner, *args, **kwargs)
            return method(inner, *args, **kwargs)

        return run if hasattr(inner, "__code__") else Proxy(inner, run)

    return wrap


@contextmanager
def kernels_routed(
    namespace: str, listeners: Mapping[Any, Callable[..., Any]], key: str = "BackendSelect"
) -> Iterator[None]:
    """Route calls of ops of a namespace through listeners, which get a function that runs the op first.

    The kernels are registered for a key for which the ops have none; BackendSelect is below autograd.
    """
    parsed: Any = torch._C._parse_dispatch_key(key)
    below = torch._C._dispatch_keyset_full_after(parsed)

    def kernel_of(op: Any, listener: Callable[..., Any]) -> Any:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            run = partial(op.redispatch, keys & below)
            if has_torch_function((None,)):
                return call_hidden(listener, run, *args, **kwargs)
            return listener(run, *args, **kwargs)

        return skipped_by_compiler(kernel)

    with torch.library._scoped_library(namespace, "IMPL") as library:
        for op, listener in listeners.items():
            library.impl(op.name(), kernel_of(op, listener), key, with_keyset=True)
        yield


def around_start(on_start: Callable[..., Any]) -> AbstractContextManager[None]:
    """Route starts of processes through ``on_start``, which receives the original method and the process."""
    return patched(BaseProcess, "start", calling(on_start))
