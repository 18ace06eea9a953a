"""What optimizers keep beside tensors: numbers of steps."""

from __future__ import annotations

import gc
from typing import Any

from torch.optim import Optimizer


class OptimizerStates:
    """Entries of every live optimizer's state, as the program's call left them.

    Tensors among the entries are the same objects after; what they hold is put back as that of any tensor.

    Example:
        >>> states = OptimizerStates()
        >>> states.settle()
        >>> states.restore()
    """

    def __init__(self) -> None:
        self._entries: list[tuple[dict[Any, Any], dict[Any, Any]]] = []

    def settle(self) -> None:
        """Note the entries of every optimizer that is alive."""
        optimizers = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        self._entries = [(state, dict(state)) for state in states if isinstance(state, dict)]

    def restore(self) -> None:
        """Put the entries back."""
        for state, entries in self._entries:
            state.update(entries)
