"""Where lines of a watch go: standard error of the first rank, a file, or a function. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.core.world import read_world
from pytest_dtdispatch.errors import WatchError

Say = Callable[[str], object]


class LineFile(Protocol):
    """A file, or what is like one to ``print``."""

    def write(self, text: str, /) -> object:
        """Write a text."""

    def flush(self) -> object:
        """Let what was written be seen."""


def sayer(to: Say | LineFile | None) -> Say:
    """Say where lines go that a user wants there."""
    if to is None:
        return say_on_first_rank
    if callable(to):
        return to
    if callable(getattr(to, "write", None)):
        return lambda line: print(line, file=to, flush=True)
    raise WatchError(f"StepWatch(print={shown(to)}): neither a function nor a file")


def say_on_first_rank(text: str) -> None:
    """Write to standard error, on the first of all ranks alone."""
    if is_first_rank():
        print(text, file=sys.stderr, flush=True)


def is_first_rank() -> bool:
    """Ask the process group, if there is one of real ranks, whether this is its first; else a launcher."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_backend() != "fake":
        return bool(dist.get_rank() == 0)
    return read_world(os.environ).is_first
