"""Hooks in objects of others: put in once for all who use them, and taken out with the last."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


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
