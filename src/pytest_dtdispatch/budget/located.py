"""Where a program is at each moment, line by line: for a few steps, which it slows down."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pytest_dtdispatch.budget.model import Moment
from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.measuring.places import ForwardPlaces, FrameOwner, look
from pytest_dtdispatch.torchapi.compiler import uncompiled

QUICK_NS, QUICK_LINES = 5_000, 20  # lines that follow each other so fast make a loop, which is at one place


class PlaceLog(ForwardPlaces):
    """Note each line of the user's program, and each module, as it comes by in this thread.

    Attributes:
        moments: by time, on the clock ``time.perf_counter_ns``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self._enter: Callable[..., Any] = self._on_entry
        self._trace: Callable[..., Any] = self._on_event
        self._stack: list[tuple[FrameOwner, FrameType]] = []
        self._quick_lines = 0
        self._last_line_ns = 0

    @contextmanager
    def noting(self, innermost: FrameType | None) -> Iterator[None]:
        """Note what the program does inside, in functions too that run already; no other tracer must run.

        Args:
            innermost: of the functions that run and belong to the program; None where none does.
        """
        self._stack = [*self._frames.outwards(innermost)][::-1]
        self._is_after_backward = False
        self._enter, self._trace = uncompiled(self._on_entry), uncompiled(self._on_event)
        running = [frame for _, frame in self._stack]
        for kind, frame in self._stack:
            frame.f_trace_lines, frame.f_trace = kind is FrameOwner.USER, self._on_event
        self._note(time.perf_counter_ns())
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)
            for frame in running:
                frame.f_trace = None

    def _owner(self, frame: FrameType) -> FrameOwner:
        return self._frames.known.get(id(frame.f_code)) or self._frames.learn(frame.f_code)

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        kind = self._owner(frame)
        return None if kind is FrameOwner.NOTHING else self._enter(frame, kind)

    def _on_entry(self, frame: FrameType, kind: FrameOwner) -> Any:
        began = time.perf_counter_ns()
        frame.f_trace_lines = kind is FrameOwner.USER
        self._stack.append((kind, frame))
        self._note(began)
        return self._trace

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        began = time.perf_counter_ns()
        if event == "line":
            self._quick_lines = self._quick_lines + 1 if began - self._last_line_ns < QUICK_NS else 0
            self._last_line_ns = began
            if self._quick_lines > QUICK_LINES:
                return self._trace
        if event == "return":
            while self._stack and self._stack.pop()[1] is not frame:
                continue
            if self._owner(frame) is FrameOwner.ENGINE and not self._is_in_engine():
                self._is_after_backward = True
        if event != "exception":
            self._note(began)
        return self._trace

    def _is_in_engine(self) -> bool:
        return any(kind is FrameOwner.ENGINE for kind, _ in self._stack)

    def _note(self, begin_ns: int) -> None:
        place, in_engine = self._place()
        self._last_line_ns = time.perf_counter_ns()
        self.moments.append(Moment(begin_ns, self._last_line_ns, place, in_engine))

    def _place(self) -> tuple[CodePlace, bool]:
        """Find the place, and whether it is code of the user that the engine calls."""
        outwards = reversed(self._stack)
        seen = look(outwards)
        if not seen.is_in_engine:
            return self._forward(seen), False
        at = seen if seen.file else look(outwards)  # what called backward
        name = self._names.known_name(seen.running) if seen.running else ""
        return CodePlace(at.file, at.line, name, Phase.BACKWARD), bool(seen.file or seen.running)
