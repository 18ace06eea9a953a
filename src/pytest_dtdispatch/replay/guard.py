"""Lock that permits one measurement at a time in a process. Does not import torch.

Concurrent measurements would time each other: they share the GIL, the switch of the garbage collector and
several caches of torch.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import Any

from pytest_dtdispatch.errors import MeasurementError

__tracebackhide__ = True  # a test that fails here shows its own line

_lock = threading.RLock()
_open: list[MeasurementLock] = []


class MeasurementLock:
    """Lock that prevents other threads from measuring while it is open.

    The thread that opened it may open others inside. Locks of a thread that has died are void, and their
    contexts are closed.

    Args:
        activity: clause for error messages, such as ``"a capture is open"``.

    Attributes:
        thread: thread that opened it.
        contexts: contexts that are closed before another thread can measure.
    """

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.thread = threading.current_thread()
        self.contexts = ExitStack()

    def __enter__(self) -> MeasurementLock:
        with _lock:
            refuse_elsewhere()
            self.thread = threading.current_thread()
            _open.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.contexts.close()  # before other threads can measure
        finally:
            with _lock:
                if self in _open:
                    _open.remove(self)

    def is_of_this_thread(self) -> bool:
        """Return whether the current thread opened it."""
        return self.thread is threading.current_thread()

    def is_void(self) -> bool:
        """Return whether the thread that opened it has died."""
        if self.thread is threading.main_thread():
            return False
        # The threading module cannot detect the end of a thread that it did not start.
        return not self.thread.is_alive() or self.thread.ident not in sys._current_frames()


def refuse_elsewhere() -> None:
    """Raise if another thread is measuring."""
    with _lock:
        for each in [*_open]:
            if each.is_void():
                _open.remove(each)
                each.contexts.close()
            elif not each.is_of_this_thread():
                raise MeasurementError(
                    f"{each.activity} in thread {each.thread.name!r}: two threads would measure each other, "
                    "so let that one end first"
                )


def refuse_inside(method: str) -> None:
    """Raise if this thread is measuring: ``method`` installs patches that would outlive that measurement."""
    with _lock:
        for each in _open:
            if each.is_of_this_thread():
                raise MeasurementError(f"{method}: {each.activity} in this thread: end that first")
