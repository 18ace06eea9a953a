"""Recorder of reads of tensor values by the host, with their source lines."""

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
    """State of the reads of a thread."""

    is_inside = False  # whether a read is running: nested ones are not counted
    is_on_cpu = False  # whether an op is running that reads numbers only on a CPU


class ReadRecorder:
    """Recorder of reads. Each method receives the reading function, and must call it.

    Args:
        here: function that returns the current line of the current thread.
        log: list to which reads are appended.
    """

    def __init__(self, here: Callable[[], CodePlace], log: list[Any]) -> None:
        self._here = here
        self._log = log
        self._reading = Reading()

    def on_read(self, run: Callable[..., Any], name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a read of a tensor; nested reads are part of it."""
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
        """Run an op that reads numbers only on a CPU."""
        with patch.object(self._reading, "is_on_cpu", True):
            return run(*args, **kwargs)
