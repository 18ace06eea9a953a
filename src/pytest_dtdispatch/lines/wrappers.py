"""Packages that wrap collectives: a source line is that of their caller. Without torch."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

DEFAULT = ("spmd_types",)
_names: tuple[str, ...] = DEFAULT


def pass_over(packages: Iterable[str]) -> None:
    """Set the packages whose lines are passed over, in addition to the default ones."""
    global _names
    _names = (*DEFAULT, *packages)


def wrapper_paths() -> tuple[str, ...]:
    """Return how the paths of files of these packages begin."""
    return tuple(path for name in _names for path in _paths_of(name))


@functools.cache  # it searches the path of imports
def _paths_of(name: str) -> tuple[str, ...]:
    """Return the paths of a package or a module by its dotted name, without importing its parents."""
    top, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a loaded module without a spec, such as __main__
        return ()
    roots = [] if spec is None else spec.submodule_search_locations or [str(spec.origin).removesuffix(".py")]
    paths = [str(Path(root, *inner)) for root in roots]
    return tuple(f"{path}{end}" for path in paths for end in (os.sep, ".py"))
