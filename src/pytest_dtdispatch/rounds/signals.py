"""Signals and warnings during repetitions: for the program, they are the same as without repetitions.

Signals are handled while the op runs, and deferred while state is restored. The exception of a handler must
propagate from the program's own call: never as a failure of a repetition, and never during a restoration.
"""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any


class Signals:
    """Context manager that defers signals to the program's handlers.

    Python runs signal handlers only in the main thread; in any other thread this is a no-op.

    Attributes:
        is_open: whether signals are handled immediately. Set it to false in the first statement of a
            ``finally``: Python handles signals at function calls and returns, not before an assignment.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._deferred: list[int] = []
        self._raised: BaseException | None = None

    def __enter__(self) -> Signals:
        # An outer instance may defer signals already.
        owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        are_deferred = isinstance(owner, Signals) and not owner.is_open
        if threading.current_thread() is threading.main_thread() and not are_deferred:
            self._change(signal.valid_signals(), self._replace)
        return self

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        self.is_open = False
        self._change(self._handlers, self._restore)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised.with_traceback(None)
        self._deliver()

    def let_in(self) -> None:
        """Handle deferred signals now, and later signals immediately."""
        self.is_open = True
        if self._raised is not None:  # a handler raised before it was replaced
            raise self._raised
        self._deliver()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_open:
            self._deferred.append(number)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            self._raised = error
            raise

    def _deliver(self) -> None:
        __tracebackhide__ = True
        while self._deferred:
            signal.raise_signal(self._deferred.pop(0))

    def _change(self, numbers: Iterable[int], change: Callable[[int], None]) -> None:
        """Change the handler of each signal, even if a handler is called meanwhile and raises."""
        pending = list(numbers)
        while pending:
            try:
                while pending:
                    change(pending[-1])
                    pending.pop()
            except BaseException as error:  # raised by a handler before its change: try again
                self._raised = error

    def _replace(self, number: int) -> None:
        handler = signal.getsignal(number)
        if callable(handler) and handler != self._on_signal:
            self._handlers[number] = handler
            signal.signal(number, self._on_signal)

    def _restore(self, number: int) -> None:
        if signal.getsignal(number) == self._on_signal:  # otherwise the program has set another handler
            signal.signal(number, self._handlers[number])


@contextmanager
def nothing_warned() -> Iterator[None]:
    """Ignore warnings of this thread, as the program's own call has shown them; preserve Python's records.

    At the end of ``warnings.catch_warnings``, Python discards its records of shown warnings. If torch does
    this in a repetition, the records are restored here, except for modules that have warned since.
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list that others may reference
    this_thread = threading.get_ident()

    def is_in_this_thread(message: str) -> bool:
        return threading.get_ident() == this_thread

    ours = ("ignore", SimpleNamespace(match=is_in_this_thread), Warning, None, 0)
    filters.insert(0, ours)
    version = _version()
    try:
        yield
    finally:
        now = _version()
        if now != version:
            for module in list(sys.modules.values()):
                try:
                    registry = vars(module).get("__warningregistry__")
                except Exception:  # not a module
                    continue
                if type(registry) is dict and registry.get("version") == version:
                    registry["version"] = now
        if ours in filters:
            filters.remove(ours)


def _version() -> int:
    """Return the number of changes of the filters; records of shown warnings with another number are void."""
    registry: dict[Any, Any] = {}
    warnings.warn_explicit("", Warning, "", 0, registry=registry)
    return int(registry["version"])
