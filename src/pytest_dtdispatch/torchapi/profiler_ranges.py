"""Ranges in a ``torch.profiler`` that runs, without an op that a mode would see."""

from __future__ import annotations

from typing import Any

import torch

_is_profiling = torch._C._autograd._profiler_enabled
# The fast one runs no op; where torch has none, the public one does.
_Range = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)


def is_profiling() -> bool:
    """Tell whether a profiler runs that sees this thread."""
    return bool(_is_profiling())


def new_range(name: str) -> Any:
    """Make a range, to be entered: a profiler that runs shows it."""
    return _Range(name)


def begin_range(name: str) -> Any:
    """Begin a range; what this returns ends it, by ``end_range``."""
    begun = new_range(name)
    begun.__enter__()
    return begun


def end_range(begun: Any) -> None:
    """End a range, whether the profiler still runs or not."""
    begun.__exit__(None, None, None)
