"""Dispatch modes: those that are open, and running without any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

T = TypeVar("T")


def without_outer_modes() -> AbstractContextManager[Any]:
    """Keep the modes that the program itself has open from seeing what is repeated."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
    return disabled


def with_own_warnings(run: Callable[[], T]) -> T:
    """Call, and have torch give the warnings of its C++ code before this returns.

    Torch keeps them until the outermost of its functions that the program called returns, which may be a
    whole backward. A function that calls back, here for the only element, keeps them no longer than itself.
    """
    results = []

    def keep(element: float) -> float:
        results.append(run())
        return element

    unseen = torch._C.DisableTorchFunction if torch._C._len_torch_function_stack() else nullcontext
    with unseen():
        torch.zeros(1, device="cpu").apply_(keep)
    return results[0]


def open_modes() -> list[Any]:
    """Return the dispatch modes that are open in this thread, outermost first."""
    modes: list[Any] = _python_dispatch._get_current_dispatch_mode_stack()
    return modes


def is_mode_of_program(mode: Any) -> bool:
    """Tell a dispatch mode that a program opened from those that torch's compiler opens for itself."""
    if not isinstance(mode, TorchDispatchMode) or type(mode).__module__.startswith("torch._functorch"):
        return False
    is_infra = getattr(mode, "is_infra_mode", None)
    return is_infra is None or not is_infra()
