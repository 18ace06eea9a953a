"""DTensor ops of threads in which no capture is open, while one is open in another thread."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter, defaultdict
from contextlib import AbstractContextManager

from pytest_dtdispatch.errors import DtDispatchWarning
from pytest_dtdispatch.torchapi.dispatcher import noticing_propagations
from pytest_dtdispatch.torchapi.modes import open_modes

MOST_NAMES = 3


class OtherThreads:
    """Notice ops that a capture does not see because they run in a thread of the program's own.

    Noticed are propagations, so that a hit costs what it costs: a new thread begins with empty caches, and
    its first ops propagate. Threads that torch runs for the thread with the capture, as autograd does, have
    its modes, and are not meant.
    """

    def __init__(self, capture: object) -> None:
        self._capture = capture
        self._home = threading.get_ident()
        self._noted: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)

    def watched(self) -> AbstractContextManager[None]:
        """Notice them for a while, from the thread that the capture is opened in."""
        self._home = threading.get_ident()
        self._noted.clear()
        return noticing_propagations(self._note)

    def warn(self) -> None:
        """Warn of what was noticed."""
        if not self._noted:
            return
        ops = sum(max(noted.values()) for noted in self._noted.values())
        names = [name for _, name in self._noted]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        listed = ", ".join(map(repr, names[:MOST_NAMES])) + more
        warnings.warn(
            f"DTensor ops ran in {'thread' if len(names) == 1 else 'threads'} {listed} (at least {ops}), "
            "where no capture was open: they were not measured; "
            "open the capture in the thread that runs them",
            DtDispatchWarning,
            stacklevel=3,
        )

    def _note(self, looked_up: str) -> None:
        ident = threading.get_ident()
        if ident != self._home and not self._is_captured():
            self._noted[ident, threading.current_thread().name][looked_up] += 1

    def _is_captured(self) -> bool:
        """Tell whether the capture is open in this thread too, or is just handling an op of it."""
        if any(mode is self._capture for mode in open_modes()):
            return True
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "__torch_dispatch__" and frame.f_locals.get("self") is self._capture:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False
