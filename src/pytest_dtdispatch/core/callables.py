"""Names of what users give to be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def own_name(fn: Callable[..., Any]) -> str:
    """Name a callable; what has no name of its own is named in angle brackets."""
    return str(getattr(fn, "__name__", "<unnamed>"))


def step_name(step_fn: Callable[[], object]) -> str:
    """Name a step: a lambda is a ``step``."""
    name = own_name(step_fn)
    return "step" if name.startswith("<") else name
