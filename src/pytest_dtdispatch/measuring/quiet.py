"""Warnings of repetitions: the program's own call has given them already."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REGISTRY = "__warningregistry__"


@contextmanager
def nothing_warned() -> Iterator[None]:
    """Ignore every warning of this thread, and leave what Python knows of warnings as it was.

    ``warnings.catch_warnings`` would not do: leaving it makes Python forget which warnings it has shown.

    Example:
        >>> with nothing_warned():
        ...     warnings.warn("nobody sees this")
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list; others may hold it
    ours = ("ignore", _OfThisThread(), Warning, None, 0)
    seen = [(registry, dict(registry)) for registry in _registries()]
    filters.insert(0, ours)
    version = _version()
    try:
        yield
    finally:
        now = _version()
        _put_back(seen, version, now)
        if ours in filters:
            filters.remove(ours)


class _OfThisThread:
    """Matches each message in one thread, and none in another."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, _message: str) -> bool:
        return threading.get_ident() == self._thread


def _registries() -> Iterator[dict[Any, Any]]:
    """Every module's record of the warnings that were shown from it."""
    for module in list(sys.modules.values()):
        registry = getattr(module, "__dict__", {}).get(REGISTRY)
        if isinstance(registry, dict):
            yield registry


def _version() -> int:
    """Number of times that filters were changed; a record with another number is void."""
    registry: dict[Any, Any] = {}
    warnings.warn_explicit("", Warning, "", 0, registry=registry)
    return int(registry["version"])


def _put_back(seen: list[tuple[dict[Any, Any], dict[Any, Any]]], version: int, now: int) -> None:
    for registry, before in seen:
        if registry != before or version != now:
            registry.clear()
            registry.update(before)
            if before.get("version") == version:
                registry["version"] = now
