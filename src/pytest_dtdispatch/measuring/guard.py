"""What must hold before anything is measured. Without torch.

Two measurements that run at once would time each other: they share the interpreter's lock, the switch of the
garbage collector and several caches of torch.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import Any

from pytest_dtdispatch.errors import MeasurementError

__tracebackhide__ = True  # a test that fails here shows its own line

_lock = threading.RLock()
_open: list[Measuring] = []


class Measuring:
    """Keep every other thread from measuring as long as this is open.

    In the thread that opened it, others may be opened inside. One whose thread has died keeps nobody away;
    what that had put in place is taken out then.

    Attributes:
        thread: that opened it.
        contexts: what must not outlive it.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.thread = threading.current_thread()
        self.contexts = ExitStack()

    def __enter__(self) -> Measuring:
        with _lock:
            refuse_elsewhere()
            self.thread = threading.current_thread()
            _open.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.contexts.close()  # first: nobody may find it in place
        finally:
            with _lock:
                if self in _open:
                    _open.remove(self)

    def is_of_this_thread(self) -> bool:
        """Return whether the calling thread is the one that opened it."""
        return self.thread is threading.current_thread()

    def is_void(self) -> bool:
        """Return whether it was left open by a thread that has died since."""
        if self.thread is threading.main_thread():
            return False
        # The threading module does not see a thread die that it did not start.
        return not self.thread.is_alive() or self.thread.ident not in sys._current_frames()


def refuse_elsewhere() -> None:
    """Refuse to measure while another thread does."""
    with _lock:
        for void in [each for each in _open if each.is_void()]:
            _open.remove(void)
            void.contexts.close()
        for each in _open:
            if not each.is_of_this_thread():
                raise MeasurementError(
                    f"{each.what} in thread {each.thread.name!r}: two threads would measure each other, "
                    "so let that one end first"
                )


def refuse_inside(what: str) -> None:
    """Refuse what outlives a block inside of another measurement of this thread: that would end first."""
    with _lock:
        for each in _open:
            if each.is_of_this_thread():
                raise MeasurementError(f"{what}: {each.what} in this thread: end that first")
