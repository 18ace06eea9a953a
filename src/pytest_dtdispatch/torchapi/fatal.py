"""Fatal signals: torch's own handler, which prints the C++ stack of each thread."""

from __future__ import annotations

import signal
import sys

import torch


def print_stacks_on_fatal_signals() -> None:
    """Print C++ stacks to standard error if this process ends by SIGABRT, SIGSEGV and the like.

    The handler takes SIGUSR2, by which it visits the other threads, and SIGINT, which is restored.
    """
    enable = getattr(torch._C, "_set_print_stack_traces_on_fatal_signal", None)
    if enable is None or sys.platform != "linux":
        return
    interrupt = signal.getsignal(signal.SIGINT)
    enable(True)
    signal.signal(signal.SIGINT, interrupt)
