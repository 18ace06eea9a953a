"""Where the steps of a training script end: at the steps of an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class StepEnds:
    """Tell of each step of the optimizer that leads: the first that steps.

    Another one that steps twice while the leader does not takes its place, as the leader may be done. So
    each iteration of a loop with several optimizers ends once. A step of an optimizer inside of compiled
    code is not told of: what is compiled stays as it is.

    Args:
        tell: is called after a step.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._leader: weakref.ref[Any] | None = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hook: Any = None

    def open(self) -> None:
        """Listen to every optimizer."""
        note = self._note

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                note(optimizer)

        self._hook = register_optimizer_step_post_hook(stepped)

    def close(self) -> None:
        """Listen no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _note(self, optimizer: Any) -> None:
        leader = self._leader() if self._leader else None
        if leader is not None and optimizer is not leader and optimizer not in self._others:
            self._others.add(optimizer)
            return
        self._leader = weakref.ref(optimizer)
        self._others.clear()
        self._tell()
