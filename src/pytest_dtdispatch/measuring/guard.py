"""What must hold before anything is measured. Without torch.

Two measurements that run at once would time each other: they share the interpreter's lock, the switch of the
garbage collector and several caches of torch.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import CaptureError, ScalingError

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
                raise CaptureError(
                    f"{each.what} in thread {each.thread.name!r}: two threads would measure each other, "
                    "so let that one end first"
                )


def refuse_inside(what: str) -> None:
    """Refuse what outlives a block inside of another measurement of this thread: that would end first."""
    with _lock:
        for each in _open:
            if each.is_of_this_thread():
                raise CaptureError(f"{what}: {each.what} in this thread: end that first")


Setup = Callable[[], "tuple[Any, ...] | None"]


def call_arguments(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    """Run the setup of a call, if it has one, and return the arguments to call with."""
    if setup is not None and not callable(setup):
        raise CaptureError(f"setup={shown(setup)} is not callable: give a function without arguments")
    made = setup() if setup else None
    if made is None:
        return args
    if not isinstance(made, tuple):
        raise CaptureError(f"setup returned {shown(made)}: it must return a tuple of arguments, or nothing")
    return made


def check_callable(method: str, fn: object, name: object) -> None:
    """Refuse what cannot be called, and a name that is no text."""
    if not callable(fn):
        kind = type(fn).__name__
        raise CaptureError(f"{method}(): a value of type {kind} is not callable; give a function")
    if name is not None and not isinstance(name, str):
        raise CaptureError(f"{method}(name={shown(name)}): a name is a text")


def callable_at(make: Callable[[int], Callable[[], Any]], size: int) -> Callable[[], Any]:
    """Make what is called at a size."""
    made = make(size)
    if not callable(made):
        raise ScalingError(
            f"make({size}) returned {shown(made)}: it must return a callable without arguments"
        )
    return made


def check_steps(
    step: Callable[[], object], warmup: int, steps: int, name: str | None = None, method: str = "steps"
) -> None:
    """Refuse what is no step, and numbers that make no sense."""
    check_callable(method, step, name)
    check_count("warmup", warmup, 0, method)
    check_count("steps", steps, 1, method)
    if takes := why_not_called(step):
        inputs = ", or give inputs=[x, ...]" if method == "steps" else ""
        raise CaptureError(
            f"the step {takes}, and {method}() gives none: "
            f"wrap it, as in dtdispatch.{method}(lambda: step(x)){inputs}"
        )


def check_count(keyword: str, value: object, least: int, method: str = "steps") -> None:
    """Refuse a number of steps that is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CaptureError(f"{method}(): {keyword}={shown(value)} is not a whole number of at least {least}")


def why_not_called(function: Callable[..., object], *arguments: object) -> str:
    """Say what a callable takes that cannot be called with these arguments; empty where it can."""
    try:
        signature = inspect.signature(function)
    except Exception:  # a function of C has no signature, and that of an object may raise
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        names = ", ".join(signature.parameters)
        return f"takes arguments ({names})" if names else "takes no argument"
    return ""
