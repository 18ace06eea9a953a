"""What must hold before anything is measured. Without torch.

Two measurements that run at once would time each other: they share the interpreter's lock, the switch of the
garbage collector and several caches of torch.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from pytest_dtdispatch.errors import CaptureError, ScalingError

_lock = threading.Lock()
_open: list[Measuring] = []


class Measuring:
    """Keep every other thread, and every other asyncio task, from measuring as long as this is open.

    In the thread and the task that opened it, others may be opened inside. One whose thread has died, or
    whose task is done, keeps nobody away; what a dead thread had put in place is taken out then.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._thread = threading.current_thread()
        self._task: Any = None
        self._held = ExitStack()

    def __enter__(self) -> Measuring:
        __tracebackhide__ = True
        thread, task = threading.current_thread(), _current_task()
        with _lock:
            _refuse(task)
            self._thread, self._task = thread, task
            _open.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.clear_away()  # first: nobody may find it in place
        finally:
            with _lock:
                if self in _open:
                    _open.remove(self)

    def hold(self, manager: AbstractContextManager[Any]) -> None:
        """Enter what must not outlive this."""
        self._held.enter_context(manager)

    def clear_away(self) -> None:
        """Leave what is held."""
        self._held.close()

    def is_of_this_thread(self) -> bool:
        """Tell whether the calling thread is the one that opened it."""
        return self._thread is threading.current_thread()

    @property
    def thread(self) -> str:
        """Name of the thread that opened it."""
        return self._thread.name

    def is_void(self) -> bool:
        """Tell whether it was left open by a thread that has died since."""
        if self._thread is threading.main_thread():
            return False
        # The threading module does not see a thread die that it did not start.
        return not self._thread.is_alive() or self._thread.ident not in sys._current_frames()

    def against(self, task: Any) -> str:
        """Say what keeps the calling thread, and the task that it runs, from measuring; empty if nothing."""
        if not self.is_of_this_thread():
            return (
                f"{self.what} in thread {self.thread!r}: two threads would measure each other, "
                "so let that one end first"
            )
        if self._task is None or task is None or self._task is task or self._task.done():
            return ""
        return (
            f"{self.what} in asyncio task {self._task.get_name()!r}, which would measure what task "
            f"{task.get_name()!r} of the same thread does: let that one end first"
        )


def refuse_elsewhere() -> None:
    """Refuse to measure while another thread or another asyncio task does."""
    __tracebackhide__ = True
    with _lock:
        _refuse(_current_task())


def _refuse(task: Any) -> None:
    __tracebackhide__ = True
    for each in [each for each in _open if each.is_void()]:
        _open.remove(each)
        each.clear_away()
    for each in _open:
        if against := each.against(task):
            raise CaptureError(against)


def _current_task() -> Any:
    """Return the asyncio task that runs, without importing asyncio where the program has not."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio.current_task() if asyncio else None
    except RuntimeError:  # no loop runs in this thread
        return None


Setup = Callable[[], "tuple[Any, ...] | None"]


def given_arguments(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    """Run the setup of a call, if it has one, and return the arguments to call with."""
    given = setup() if setup else None
    if given is None:
        return args
    if not isinstance(given, tuple):
        raise CaptureError(f"setup returned {given!r}: it must return a tuple of arguments, or nothing")
    return given


def callable_at(make: Callable[[int], Callable[[], Any]], size: int) -> Callable[[], Any]:
    """Make what is called at a size."""
    __tracebackhide__ = True
    made = make(size)
    if not callable(made):
        raise ScalingError(f"make({size}) returned {made!r}: it must return a callable without arguments")
    return made


def check_steps(step: Callable[[], object], warmup: int, steps: int) -> None:
    """Refuse what cannot be counted."""
    __tracebackhide__ = True
    for keyword, value, least in (("warmup", warmup, 0), ("steps", steps, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CaptureError(f"steps(): {keyword}={value!r} is not a whole number of at least {least}")
    if not callable(step):
        raise CaptureError(f"steps({step!r}): give a callable that runs one step")
    required = _required_arguments(step)
    if required:
        raise CaptureError(
            f"the step takes arguments ({', '.join(required)}), and steps() gives none: "
            "wrap it, as in dtdispatch.steps(lambda: step(x))"
        )


def _required_arguments(step: Callable[[], object]) -> list[str]:
    try:
        parameters = inspect.signature(step).parameters.values()
    except ValueError:  # a function of C that does not tell
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
