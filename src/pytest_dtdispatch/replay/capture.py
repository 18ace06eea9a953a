"""Captures: dispatch modes that receive the DTensor ops of a region, and find uncaptured ones."""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from logging import DEBUG
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.store import ResultStore, Uncaptured
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.errors import MeasurementError, warn
from pytest_dtdispatch.replay.guard import MeasurementLock, refuse_elsewhere
from pytest_dtdispatch.replay.modes import UnnoticedMode
from pytest_dtdispatch.replay.repeat import run_conversion, run_op, settled_conversion
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.calls import ConversionCall, OpCall
from pytest_dtdispatch.torchapi.compiler import is_tracing
from pytest_dtdispatch.torchapi.groups import innermost_in_local_mode
from pytest_dtdispatch.torchapi.observe import Converter, observe_conversions, observe_propagations
from pytest_dtdispatch.torchapi.ops import (
    hidden_from_constructors,
    hidden_from_debug_mode,
    is_mode_of_program,
    modes_disabled,
    op_name,
    open_modes,
)
from pytest_dtdispatch.torchapi.propagator import PlanCaches, ShardingCaches, dispatch_loggers
from pytest_dtdispatch.torchapi.python_calls import call_in_python
from pytest_dtdispatch.torchapi.signatures import signature_of, signature_of_conversion, spec_notes
from pytest_dtdispatch.torchapi.tensors import (
    group_backend,
    is_local_mode_open,
    share_masks,
    wraps_dtensors,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__tracebackhide__ = True  # a failing test shows its own line


class UncapturedOps:
    """Detector of DTensor ops that an open capture does not receive.

    In other threads of the program, propagations are recorded, which does not slow down hits: a new thread
    starts with empty caches, so its first ops propagate. Threads that torch runs for the capture's thread,
    such as those of autograd, have its modes and are excluded.

    A mode that is opened inside the capture may decline DTensor ops and pass on their plain-tensor ops, as a
    debug mode does. This is detected by a plain-tensor op after a propagation that no op of the capture
    caused.
    """

    def __init__(self, capture: object, caches: ShardingCaches) -> None:
        self._capture = capture
        self._caches = caches
        self._home = threading.get_ident()
        self._propagated: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
        self._counted: dict[int, list[tuple[int, int]]] = {}  # counters are per thread
        self._hiding: set[str] = set()

    def update(self) -> None:
        """Record the counters of this thread at the end of an op of the capture."""
        self._counted[threading.get_ident()] = self._counters()

    def check_modes(self) -> None:
        """Record the mode that hides the DTensor op to which the current plain-tensor op belongs."""
        now = self._counters()
        if self._counted.get(threading.get_ident(), now) == now:
            return
        mode = next(filter(is_mode_of_program, _dispatching()), None)
        if mode is not None:
            self._hiding.add(type(mode).__name__)

    def found(self) -> Uncaptured:
        """Return the number of threads with uncaptured ops, at least how many ops, and hiding modes."""
        ops = sum(max(propagated.values()) for propagated in self._propagated.values())
        return Uncaptured(len(self._propagated), ops, modes=tuple(sorted(self._hiding)))

    def warn(self) -> None:
        """Issue warnings about the detected ops."""
        found = self.found()
        messages = [
            f"{mode} was opened inside the capture and hides DTensor ops from it: "
            f"open a capture inside {mode}, by TimeCaptureMode or dtdispatch.capture()"
            for mode in found.modes
        ]
        if found.threads:
            names = ", ".join(repr(name) for _, name in self._propagated)
            messages.append(
                f"DTensor ops ran in threads without a capture ({names}; at least {found.ops} ops): "
                "they were not measured; open the capture in the thread that runs them"
            )
        for message in messages:
            warn(message, stacklevel=4, is_reported=True)

    def _counters(self) -> list[tuple[int, int]]:
        return [(read[0], read[1]) for read in (reader() for reader in self._caches.readers())]

    def on_propagation(self, kind: str) -> None:
        """Record a propagation in a thread other than that of the capture."""
        ident = threading.get_ident()
        # The capture may be open in this thread too, or be handling an op of it right now.
        if ident != self._home and all(one is not self._capture for one in (*open_modes(), *_dispatching())):
            self._propagated[ident, threading.current_thread().name][kind] += 1


def _dispatching() -> Iterator[Any]:
    """Yield the modes and subclasses that are handling an op in this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__":
            yield frame.f_locals.get("self")
        frame = frame.f_back


class DispatchCapture(UnnoticedMode):
    """Dispatch mode that passes DTensor ops to :meth:`on_op`.

    Like every dispatch mode, it runs below autograd.
    """

    def __init__(self, ops: Sequence[str] = (), results: ResultStore | None = None) -> None:
        super().__init__()
        self._ops = tuple(ops)
        self._results = ResultStore() if results is None else results
        self._caches = ShardingCaches()
        self._masks: dict[tuple[Any, ...], list[Any]] = {}
        self._lock = MeasurementLock("a capture is open")

    def __enter__(self) -> Self:
        refuse_elsewhere()
        if any(isinstance(mode, DispatchCapture) for mode in open_modes()):
            raise MeasurementError(
                "a capture is open already: captures cannot be nested, close the outer one first"
            )
        return super().__enter__()

    def _open(self) -> None:
        warn_of_debug_logging()  # signals are deferred here, so that none can leave logging locked
        self._lock.__enter__()
        self._uncaptured = UncapturedOps(self, self._caches)
        self._lock.contexts.enter_context(observe_propagations(self._uncaptured.on_propagation))
        self._lock.contexts.enter_context(innermost_in_local_mode(self))
        self._lock.contexts.enter_context(hidden_from_debug_mode(UnnoticedMode))
        self._lock.contexts.enter_context(hidden_from_constructors(UnnoticedMode))
        super()._open()
        self._uncaptured.update()

    def _close(self) -> list[str]:
        try:
            return super()._close() if self._lock.is_of_this_thread() else []
        finally:
            self._lock.__exit__()

    def _closed(self, left_open: list[str], has_raised: bool) -> None:
        self._results.uncaptured += self._uncaptured.found()
        if has_raised:
            return
        if not self._lock.is_of_this_thread():
            raise MeasurementError(
                f"the capture was opened in thread {self._lock.thread.name!r}: close it there"
            )
        self._uncaptured.warn()
        if left_open:
            raise MeasurementError(f"{', '.join(left_open)} was opened inside the capture and never closed")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OpCall(func, args, kwargs)
        if types != (DTensor,) and any(map(wraps_dtensors, call.leaves)):
            return NotImplemented  # the subclass dispatches ops on its inner DTensors, which arrive here
        try:
            if not call.has_dtensor:
                self._uncaptured.check_modes()
                result = self.on_plain_op(call)
            else:
                result = self.on_op(call) if self._is_selected(op_name(func)) else call.run()
        finally:
            self._uncaptured.update()
        share_masks(self._masks, call, result)
        return result

    def _is_selected(self, name: str) -> bool:
        if not self._ops or any(fnmatchcase(name, op) for op in self._ops):
            return True
        self._results.passed_over.add(name)
        self._results.calls_passed_over += 1
        return False

    def on_plain_op(self, call: OpCall) -> Any:
        """Run an op without DTensors, and return its result."""
        return call.run()

    @abstractmethod
    def on_op(self, call: OpCall) -> Any:
        """Run the call once for the program, and return its result."""


class ConversionCapture(DispatchCapture):
    """Dispatch mode that also passes conversions, which are not ops, to :meth:`on_outermost`."""

    def __init__(self, ops: Sequence[str] = (), results: ResultStore | None = None) -> None:
        super().__init__(ops, results)
        self._converting = threading.local()
        self._observing = ExitStack()

    def _open(self) -> None:
        super()._open()
        self._lock.contexts.push(self._observing)
        self._observe()

    def _observe(self) -> None:
        self._observing.enter_context(observe_conversions(self, is_hidden=False))

    @contextmanager
    def _unobserved(self) -> Iterator[None]:
        """Do not observe conversions: an op may convert, and its repetitions must not take longer for it."""
        self._observing.close()
        try:
            yield
        finally:
            self._observe()

    @property
    def is_converting(self) -> bool:
        """Whether this thread is inside a conversion."""
        return getattr(self._converting, "is_inside", False)

    def on_conversion(
        self, converter: Converter, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run a conversion, and pass it on if it is outermost and in the thread of the capture.

        A conversion inside an op is part of the op: the capture is not open there, nor in a repetition.
        """
        if self.is_converting:
            return function(*args, **kwargs)
        call = ConversionCall(converter, function, args, kwargs)
        if call.tensor is None or is_tracing() or all(one is not self for one in open_modes()):
            return function(*args, **kwargs)
        self._converting.is_inside = True
        try:
            return self.on_outermost(call)
        finally:
            self._converting.is_inside = False

    @abstractmethod
    def on_outermost(self, call: ConversionCall) -> Any:
        """Run the conversion once for the program, and return its result."""


class SignatureCapture(ConversionCapture):
    """Capture that measures each signature of ops and conversions at its first call, and counts other calls.

    Args:
        results: store of the measurements, shared by the captures of a test.
        plan: rounds and time limit of each signature.
        ops: globs of op names; every op if empty.
    """

    def __init__(self, results: ResultStore, plan: Plan, ops: Sequence[str] = ()) -> None:
        super().__init__(ops, results)
        self._plan = plan
        self._plans = PlanCaches()

    def on_op(self, call: OpCall) -> Any:
        """Run the call, and measure it if its signature is new."""
        signature = signature_of(call)
        if self._results.count(signature):
            return call.run()
        self._begin(signature)
        notes = spec_notes(call.leaves)  # first: an op may resize its out=
        with modes_disabled():
            python = call_in_python(call)
        result, ran = run_op(call)
        with self._unobserved():
            figures = ran.measure(self._caches, self._plan)
        figures = replace(figures, notes=(*notes, *figures.notes), call=python)
        self._results.enter(signature, figures, group_backend(signature.device))
        return result

    def on_outermost(self, call: ConversionCall) -> Any:
        """Run a conversion, and measure it if its signature is new."""
        result, replay = run_conversion(call)
        self._uncaptured.update()
        if not self._is_selected(call.name):
            return result
        with modes_disabled():
            signature = signature_of_conversion(call, result)
        if self._results.count(signature):
            return result
        self._begin(signature)
        ran = settled_conversion(call, result, replay)
        with self._unobserved():
            figures = ran.measure(self._plans, self._plan)
        self._results.enter(signature, figures, group_backend(signature.device))
        self._uncaptured.update()
        return result

    def _begin(self, signature: Signature) -> None:
        """Report progress on a signature, and synchronize ranks."""
        if self._plan.agreement is not None:
            self._plan.agreement.sync(signature.full)
        self._results.is_simulated |= is_local_mode_open()
        show_progress("measuring {}", signature)


def warn_of_debug_logging() -> None:
    """Warn if a logger of the dispatcher has level DEBUG, so that torch formats every dispatched op."""
    at_debug = [logger.name for logger in dispatch_loggers() if logger.isEnabledFor(DEBUG)]
    if at_debug:
        warn(
            f"logger {at_debug[0]} has level DEBUG, which makes every hit several times slower: "
            "set it to INFO for representative figures",
            stacklevel=6,
        )
