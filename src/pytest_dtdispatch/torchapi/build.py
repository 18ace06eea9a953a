"""How torch was built, and what of the machine it can tell."""

from __future__ import annotations

from typing import Any

import torch


def instruction_counter() -> Any:
    """Return what starts and ends the processor's counter of instructions; None where torch has nothing."""
    return getattr(torch._C, "_instruction_counter", None)


def cuda_driver_version() -> str:
    """Return the newest CUDA version that the driver takes, ``12.4``; empty where torch does not tell."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def torch_build() -> str:
    """Return the git revision that torch was built from."""
    return str(getattr(torch.version, "git_version", "unknown"))
