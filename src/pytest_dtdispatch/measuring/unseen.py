"""DTensor ops that a capture does not see: a mode hides them, or they run in a thread of their own."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from pytest_dtdispatch.errors import DtDispatchWarning
from pytest_dtdispatch.torchapi.dispatcher import noticing_propagations
from pytest_dtdispatch.torchapi.ops import is_mode_of_program, open_modes
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.shared_hook import SharedHook

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

    def found(self) -> tuple[int, int]:
        """Return how many threads ran ops, and at least how many ops."""
        return len(self._noted), sum(max(noted.values()) for noted in self._noted.values())

    def warn(self) -> None:
        """Warn of what was noticed."""
        if not self._noted:
            return
        _, ops = self.found()
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
        # In this thread too the capture may be open, or be handling an op of it right now.
        if ident != self._home and all(one is not self._capture for one in (*open_modes(), *_dispatching())):
            self._noted[ident, threading.current_thread().name][looked_up] += 1


class HidingModes:
    """Notice a mode that was opened inside a capture and hides DTensor ops from it.

    Such a mode declines DTensor ops and lets their plain-tensor ops through: a debug mode does. The
    proof is that a plain-tensor op comes through it after a propagation that no op of the capture made.
    """

    def __init__(self, caches: ShardingCaches) -> None:
        self._caches = caches
        self._noted: dict[int, list[tuple[int, int]]] = {}  # counters are per thread
        self._hiding: set[str] = set()

    def note(self) -> None:
        """Note the counters of this thread: an op that the capture saw has ended."""
        self._noted[threading.get_ident()] = self._counters()

    def look(self) -> None:
        """Look for a mode that hides the DTensor op to which the plain-tensor op at hand belongs."""
        if self._noted.get(threading.get_ident(), now := self._counters()) == now:
            return
        if (mode := next(filter(is_mode_of_program, _dispatching()), None)) is not None:
            self._hiding.add(type(mode).__name__)

    def _counters(self) -> list[tuple[int, int]]:
        return [(read[0], read[1]) for read in (reader() for reader in self._caches.readers())]

    def found(self) -> tuple[str, ...]:
        """Return the names of modes that hid ops."""
        return tuple(sorted(self._hiding))

    def warn(self) -> None:
        """Warn of the modes that were found."""
        for mode in self.found():
            warnings.warn(
                f"{mode} was opened inside the capture and hides DTensor ops from it: "
                f"open a capture inside {mode}, by TimeCaptureMode or dtdispatch.capture()",
                DtDispatchWarning,
                stacklevel=3,
            )


@contextmanager
def watching_processes(on_start: Callable[[Any, Callable[[Any], Any]], Any]) -> Iterator[None]:
    """Hand over every process that is to run a function of the program, and what starts it."""

    def watched(start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return wraps(start)(lambda process: on_start(process, start))

    with SharedHook(BaseProcess, "start", watched).in_place():
        yield


def _dispatching() -> Iterator[Any]:
    """Give what is handling an op in this thread right now, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__":
            yield frame.f_locals.get("self")
        frame = frame.f_back
