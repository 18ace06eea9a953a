"""Record reads of values of tensors by the host, with their source lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.replay.call import placement_text, spec_text
from pytest_dtdispatch.steps.events import Read
from pytest_dtdispatch.torchapi.reads import is_host_read, waits_for_device
from pytest_dtdispatch.torchapi.tensors import is_dtensor, is_tensor, local_of


class Reading(threading.local):
    """What a thread reads."""

    is_inside = False  # of a read, whose parts are not counted
    is_on_cpu = False  # whether an op reads numbers on a CPU only


class ReadRecorder:
    """Records reads. Each method receives what reads, and must call it.

    Args:
        here: returns the current line of the calling thread.
        log: list that reads are appended to.
    """

    def __init__(self, here: Callable[[], CodePlace], log: list[Any]) -> None:
        self._here = here
        self._log = log
        self._reading = Reading()

    def on_read(self, run: Callable[..., Any], name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a read of a tensor; reads inside are part of it."""
        reading = self._reading
        is_part = reading.is_inside or (reading.is_on_cpu and name == "item")
        if is_part or not is_tensor(tensor) or is_host_read(sys._getframe(1)):
            return run(tensor, *args, **kwargs)
        with patch.object(reading, "is_inside", True):
            result = run(tensor, *args, **kwargs)
            if waits_for_device(local_of(tensor)):
                placements = tensor.placements if is_dtensor(tensor) else ()
                # Torch redistributes partial tensors for all other ops.
                is_partial = name == "item" and any(placement.is_partial() for placement in placements)
                texts = tuple(map(placement_text, placements))
                self._log.append(Read(name, spec_text(tensor), texts, is_partial, place=self._here()))
        return result

    def on_cpu_reader(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an op whose reads of numbers happen on a CPU only."""
        with patch.object(self._reading, "is_on_cpu", True):
            return run(*args, **kwargs)
