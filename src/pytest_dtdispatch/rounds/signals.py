"""Signals and warnings while an op is repeated, which the program must see only as if it were not.

Signals are let in where the op runs, and held back where state is put back. A handler that raises must reach
the program, at the place of its own call: never as a failure of a repetition, and never between two things
that are put back.
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

from pytest_dtdispatch.core.text import ask

SIGNALS = tuple(signal.valid_signals())


class Signals:
    """Stands between the program's signal handlers and what is repeated, as a context manager.

    Python runs signal handlers in the main thread alone; in any other this does nothing.

    Attributes:
        is_open: whether a signal that comes is handled at once. Set it to false in the first statement of a
            ``finally``: Python looks for signals where functions begin and end, not before an assignment.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._deferred: list[int] = []
        self._raised: BaseException | None = None

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread() and not _are_held_back():
            self._change(SIGNALS, self._take_over)
        return self

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        self.is_open = False
        self._change(self._handlers, self._give_back)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised.with_traceback(None)
        self._deliver()

    def let_in(self) -> None:
        """Handle signals at once from now on, those that were held back first."""
        self.is_open = True
        if self._raised is not None:  # one came before its handler was replaced
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
        """Change the handler of each signal, also where one of them is called meanwhile and raises."""
        pending = list(numbers)
        while pending:
            try:
                while pending:
                    change(pending[-1])
                    pending.pop()
            except BaseException as error:  # it came before the handler was set: it is set again
                self._raised = error

    def _take_over(self, number: int) -> None:
        handler = signal.getsignal(number)
        if callable(handler) and handler != self._on_signal:
            self._handlers[number] = handler
            signal.signal(number, self._on_signal)

    def _give_back(self, number: int) -> None:
        if signal.getsignal(number) == self._on_signal:  # else the program has set another
            signal.signal(number, self._handlers[number])


def _are_held_back() -> bool:
    """Whether one around it holds signals back already, as the handler of an interrupt tells."""
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(owner, Signals) and not owner.is_open


@contextmanager
def nothing_warned() -> Iterator[None]:
    """Ignore every warning of this thread, and leave what Python knows of warnings as it was.

    The program's own call has given them already.

    ``warnings.catch_warnings`` would not do: leaving it makes Python forget which warnings it has shown.
    Where torch leaves one, they are remembered, but for modules that warned after that, as in the program.
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list; others may hold it
    this_thread = threading.get_ident()
    in_this_thread = SimpleNamespace(match=lambda message: threading.get_ident() == this_thread)
    ours = ("ignore", in_this_thread, Warning, None, 0)
    filters.insert(0, ours)
    version = _version()
    try:
        yield
    finally:
        if (now := _version()) != version:
            for module in list(sys.modules.values()):
                registry: Any = ask(lambda each: vars(each).get("__warningregistry__"), module, None)
                if type(registry) is dict and registry.get("version") == version:
                    registry["version"] = now
        if ours in filters:
            filters.remove(ours)


def _version() -> int:
    """Number of times that filters were changed; a record with another number is void."""
    registry: dict[Any, Any] = {}
    warnings.warn_explicit("", Warning, "", 0, registry=registry)
    return int(registry["version"])
