"""Line-by-line tracing of a program for a few steps, which become slower."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from pytest_dtdispatch.core.events import CodePlace, OptimizerStep, Phase
from pytest_dtdispatch.lines.finder import ForwardLines
from pytest_dtdispatch.lines.frames import FrameOwner, FrameOwners, owners_in, view_stack
from pytest_dtdispatch.lines.traced_line import TracedLine
from pytest_dtdispatch.torchapi.compiler import uncompiled
from pytest_dtdispatch.torchapi.optimizers import describe_optimizer

# Tracing plain Python takes 10 to 80 times as long as its lines. It ends when it has taken this multiple of
# the remaining time, but not before it has taken as long as starting the profiler (20 ms).
MAX_TRACING = 3
MANY_LINES = 200


class LineTracer(ForwardLines):
    """Tracer of the lines and modules of the user's program in this thread.

    All code that an import runs is attributed to the importing line.

    Attributes:
        lines: traced lines, in the order of time.
        ended_at: last line, if tracing reached its maximum; else None.
        is_interrupted: whether the program installed its own tracer.
        optimizers: optimizers whose ``step`` ran, by id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[TracedLine] = []
        self.ended_at: CodePlace | None = None
        self.is_interrupted = False
        self._is_importing = False
        self.optimizers: dict[int, OptimizerStep | None] = {}
        self._stack: list[tuple[FrameOwner, FrameType]] = []
        self._quick_lines = self._last_line_ns = 0

    @contextmanager
    def tracing(self, innermost: FrameType | None, max_tracing: float = math.inf) -> Iterator[None]:
        """Trace the program inside, including functions that are running. There must be no other tracer.

        Args:
            innermost: innermost running frame to trace; None for none.
            max_tracing: maximum time of tracing relative to the remaining time; tracing ends there.
        """
        self._trace: Callable[..., Any] = self._on_event
        self._call_ns = self._unclocked_ns()
        self._enter, self._trace = uncompiled(self._on_entry), uncompiled(self._on_event)
        self._event_ns = self._unclocked_ns()
        self._max_tracing = max_tracing
        self._check_at_ns = 20_000_000 if max_tracing < math.inf else math.inf
        self._quick_lines, self._tracing_ns, self._began_ns = 0, 0, time.perf_counter_ns()
        self._stack = [*self.frames.outwards(innermost)][::-1]
        self._is_after_backward = False
        running = [frame for _, frame in self._stack]
        for kind, frame in self._stack:
            frame.f_trace_lines, frame.f_trace = kind is FrameOwners.USER, self._on_event
        self._record(time.perf_counter_ns())
        tracer = self._on_call
        sys.settrace(tracer)
        try:
            yield
        finally:
            if sys.gettrace() is tracer:
                sys.settrace(None)
            elif self.ended_at is None:  # the program's own tracer stays installed
                self.is_interrupted = True
            for frame in running:
                frame.f_trace = None

    def _unclocked_ns(self) -> int:
        """Measure the cost of an unrecorded line without the time that the trace function itself measures."""
        count, shortest_ns = len(self.lines), sys.maxsize

        def trial(*_: Any) -> Any:
            return self._trace

        for _ in range(5):
            self._event_ns, self._tracing_ns, self._check_at_ns = 0, 0, math.inf
            began = self._last_line_ns = time.perf_counter_ns()
            sys.settrace(trial)
            _lines()
            sys.settrace(None)
            shortest_ns = min(shortest_ns, time.perf_counter_ns() - began - self._tracing_ns)
        del self.lines[count:]
        return max(shortest_ns, 0) // MANY_LINES

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._is_importing:
            return None
        kind = self.frames.owner(frame.f_code)
        is_inner = kind.is_library and self._is_in_library(kind, frame)
        if kind is not FrameOwners.NOTHING and not is_inner:
            return self._enter(frame, kind)
        self._tracing_ns += self._call_ns
        if self._tracing_ns >= self._check_at_ns:
            self._check(time.perf_counter_ns())
        elif frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            self._is_importing, frame.f_trace_lines = True, False
            return self._on_import
        return None

    def _on_import(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._is_importing = event != "return"
        return self._on_import

    def _on_entry(self, frame: FrameType, kind: FrameOwner) -> Any:
        began = time.perf_counter_ns()
        frame.f_trace_lines = kind is FrameOwners.USER
        self._stack.append((kind, frame))
        if frame.f_code.co_name == "step":
            optimizer = frame.f_locals.get("self")
            if isinstance(optimizer, Optimizer):
                describe = describe_optimizer(optimizer)
                self.optimizers[id(optimizer)] = describe() if describe else None
        return self._record(began)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began = time.perf_counter_ns()
        if event == "line":
            self._quick_lines = self._quick_lines + 1 if began - self._last_line_ns < 5_000 else 0
            self._last_line_ns = began
            if self._quick_lines > 20:  # after 20 lines of at most 5 us each, a loop is one line
                return self._spend(began)
        if event == "return":
            while self._stack and self._stack.pop()[1] is not frame:
                continue
            if self.frames.owner(frame.f_code) is FrameOwners.ENGINE and not self._is_in_engine():
                self._is_after_backward = True
        return self._trace if event == "exception" else self._record(began)

    def _innermost(self) -> FrameOwner:
        return self._stack[-1][0] if self._stack else FrameOwners.USER

    def _is_in_library(self, kind: FrameOwner, frame: FrameType) -> bool:
        """Return whether a library calls its own function, for the same parameters.

        These calls have no event: there are dozens in each hook of FSDP2.
        """
        if self._innermost() is not kind:
            return False
        owners = owners_in(frame) if kind is FrameOwners.FSDP else ()
        return not owners or owners == owners_in(self._stack[-1][1])

    def _is_in_engine(self) -> bool:
        return any(kind is FrameOwners.ENGINE for kind, _ in self._stack)

    def _record(self, begin_ns: int) -> Any:
        """Record the current line, and whether it is code of modules that the autograd engine called."""
        outwards = reversed(self._stack)
        seen = view_stack(outwards)
        if seen.is_in_engine:  # code of FSDP2 has no line of its own there
            name = self._module_in_backward(seen)
            at = seen if seen.file or seen.owners else view_stack(outwards)  # the caller of backward
            place = CodePlace(at.file, at.line, name, Phase.BACKWARD)
            in_engine = bool(seen.file or name)
        else:
            place, in_engine = self._forward(seen), self._is_in_engine()
        self._last_line_ns = time.perf_counter_ns()
        part = self._innermost().part
        self.lines.append(TracedLine(begin_ns, self._last_line_ns, place, in_engine, part))
        return self._spend(begin_ns)

    def _spend(self, begin_ns: int) -> Any:
        """Add the time of tracing; return the trace function, or None if the maximum is reached."""
        self._tracing_ns += time.perf_counter_ns() - begin_ns + self._event_ns
        return self._trace if self._tracing_ns < self._check_at_ns else self._check(begin_ns)

    def _check(self, begin_ns: int) -> Any:
        now = time.perf_counter_ns()
        self._check_at_ns = self._tracing_ns + 1_000_000
        if self._tracing_ns <= self._max_tracing * (now - self._began_ns - self._tracing_ns):
            return self._trace
        sys.settrace(None)
        for _, frame in self._stack:
            frame.f_trace = None
        self.ended_at = self.lines[-1].place
        self.lines.append(TracedLine(begin_ns, now, None, False))
        return None


def _lines() -> None:
    for _ in range(MANY_LINES):
        pass
