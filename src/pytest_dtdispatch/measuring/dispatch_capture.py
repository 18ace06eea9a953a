"""What a capture is: a dispatch mode that is asked for every op of a region."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from logging import DEBUG
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.results import Unseen
from pytest_dtdispatch.errors import CaptureError, DtDispatchWarning
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.op_call import OpCall, UnnoticedMode, has_dtensor
from pytest_dtdispatch.measuring.preconditions import Measuring, refuse_elsewhere
from pytest_dtdispatch.measuring.unseen import HidingModes, OtherThreads
from pytest_dtdispatch.torchapi.ops import op_name, open_modes
from pytest_dtdispatch.torchapi.process_groups import innermost_in_local_mode
from pytest_dtdispatch.torchapi.propagator import ShardingCaches, dispatch_loggers
from pytest_dtdispatch.torchapi.tensors import wraps_dtensors

if TYPE_CHECKING:
    from typing_extensions import Self


class DispatchCapture(UnnoticedMode):
    """A dispatch mode that is asked for every op, and hands those on DTensors to :meth:`on_op`.

    It starts below autograd, where torch asks dispatch modes.
    """

    def __init__(self, ops: Sequence[str] = ()) -> None:
        super().__init__()
        self._ops = tuple(ops)
        self._passed_over: set[str] = set()
        self._caches = ShardingCaches()
        self._hiding = HidingModes(self._caches)
        self._others = OtherThreads(self)
        self._measuring = Measuring("a capture is open")

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        refuse_elsewhere()
        if any(isinstance(mode, DispatchCapture) for mode in open_modes()):
            raise CaptureError(
                "a capture is open already: captures cannot be nested, close the outer one first"
            )
        try:
            with Signals():
                warn_of_debug_logging()
                self._measuring.__enter__()
                self._measuring.held.enter_context(self._others.watched())
                self._measuring.held.enter_context(innermost_in_local_mode(self))
                self._measuring.held.enter_context(self.watching_more())
                super().__enter__()
                self._hiding.note()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        try:
            with Signals():
                left_open = self._leave()
        except BaseException:  # it may have come before signals were held back
            self._leave()
            raise
        self.on_unseen(Unseen(*self._others.found(), modes=self._hiding.found()))
        if exception[0] is not None:
            return
        if not self._measuring.is_of_this_thread():
            raise CaptureError(
                f"the capture was opened in thread {self._measuring.thread.name!r}: close it there"
            )
        self._others.warn()
        self._hiding.warn()
        if left_open:
            raise CaptureError(f"{', '.join(left_open)} was opened inside the capture and never closed")

    def _leave(self) -> list[str]:
        try:
            return self._close() if self._measuring.is_of_this_thread() else []
        finally:
            self._measuring.__exit__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        call = OpCall(func, args, kwargs or {})
        leaves = call.leaves()
        if types != (DTensor,) and any(map(wraps_dtensors, leaves)):
            return NotImplemented  # its own dispatch comes down to ops on the DTensors inside, seen here
        on_dtensors = has_dtensor(leaves)
        if not on_dtensors:
            self._hiding.look()
        try:
            if on_dtensors and (not self._ops or self._is_asked_for(op_name(func))):
                return self.on_op(call)
            return self.on_passed_over(call) if on_dtensors else call.run()
        finally:
            self._hiding.note()

    def _is_asked_for(self, name: str) -> bool:
        if any(fnmatchcase(name, op) for op in self._ops):
            return True
        self._passed_over.add(name)
        return False

    def watching_more(self) -> AbstractContextManager[Any]:
        """Watch what is no op, as long as it is open."""
        return nullcontext()

    def on_unseen(self, unseen: Unseen) -> None:
        """Take what ran while it was open, and was not seen."""

    def on_passed_over(self, call: OpCall) -> Any:
        """Make a call that was not asked for."""
        __tracebackhide__ = True
        return call.run()

    @abstractmethod
    def on_op(self, call: OpCall) -> Any:
        """Make the call for the program, once, and return its result."""


def warn_of_debug_logging() -> None:
    """Warn when a logger of the dispatcher is at DEBUG, where torch formats every op it dispatches."""
    at_debug = [logger.name for logger in dispatch_loggers() if logger.isEnabledFor(DEBUG)]
    if at_debug:
        warnings.warn(
            f"logger {at_debug[0]} is at DEBUG, which makes every hit several times slower: "
            "set it to INFO to measure what users have",
            DtDispatchWarning,
            stacklevel=4,
        )
