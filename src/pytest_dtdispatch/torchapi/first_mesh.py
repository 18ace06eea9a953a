"""Be told before a program makes its first DeviceMesh: without one there is no DTensor. Imports no torch.

A program may set what torch reads as it is imported, so torch is imported when the program does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any

HOME = "torch.distributed.device_mesh"


class _Finder(MetaPathFinder):
    """Finds the one module as Python does, and tells when it was run."""

    def __init__(self, loaded: Callable[[Any], None]) -> None:
        self._loaded = loaded

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = PathFinder.find_spec(name, path, target) if name == HOME else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self._loaded(module)

            vars(spec.loader)["exec_module"] = exec_module
        return spec


@contextmanager
def told_of_first_mesh(tell: Callable[[], object]) -> Iterator[None]:
    """Be told once, in the thread that makes the mesh, right before it is made."""
    patched: list[tuple[Any, Any]] = []

    def patch(module: Any) -> None:
        kind = getattr(module, "DeviceMesh", None)
        if kind is not None and (make := vars(kind).get("__init__")) is not None:  # a stub has none
            kind.__init__ = _once(make)
            patched.append((kind, make))

    def _once(make: Any) -> Any:
        @functools.wraps(make)
        def first(*args: Any, **kwargs: Any) -> None:
            put_back()
            tell()
            make(*args, **kwargs)

        return first

    def put_back() -> None:
        while patched:
            kind, make = patched.pop()
            kind.__init__ = make

    finder = _Finder(patch)
    if HOME in sys.modules:
        patch(sys.modules[HOME])
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        put_back()
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
