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
from pytest_dtdispatch.measuring.places import PHASES, FrameOwner, Frames, ModuleNames
from pytest_dtdispatch.torchapi.compiler import uncompiled

QUICK_NS, QUICK_LINES = 5_000, 20  # lines that follow each other so fast make a loop, which is at one place


class PlaceLog:
    """Note each line of the user's program, and each module, as it comes by in this thread.

    Attributes:
        moments: by time, on the clock ``time.perf_counter_ns``.
    """

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._frames = Frames()
        self._names = ModuleNames()
        self._enter: Callable[..., Any] = self._on_entry
        self._trace: Callable[..., Any] = self._on_event
        self._stack: list[tuple[FrameOwner, FrameType]] = []
        self._is_after_backward = False
        self._quick_lines = 0
        self._last_line_ns = 0

    @contextmanager
    def noting(self, innermost: FrameType | None) -> Iterator[None]:
        """Note what the program does inside, in functions too that run already; no other tracer must run.

        Args:
            innermost: of the functions that run and belong to the program; None where none does.
        """
        self._stack.clear()
        self._is_after_backward = False
        self._enter, self._trace = uncompiled(self._on_entry), uncompiled(self._on_event)
        while innermost is not None:
            kind = self._owner(innermost)
            if kind is not FrameOwner.NOTHING:
                self._stack.insert(0, (kind, innermost))
            innermost = innermost.f_back
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
        if kind is FrameOwner.MODULE and not self._is_in_engine():
            self._is_after_backward = False
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
        """Look at the stack from the innermost frame out."""
        line: tuple[str, int] | None = None
        running: list[Any] = []
        phase: Phase | None = None
        in_engine = False
        for kind, frame in reversed(self._stack):
            if kind is FrameOwner.USER and line is None:
                line = (frame.f_code.co_filename, frame.f_lineno)
            elif kind is FrameOwner.MODULE and phase is None:
                running.append(frame.f_locals["self"])
            elif kind in PHASES and phase is None:
                phase = PHASES[kind]
                in_engine = kind is FrameOwner.ENGINE and bool(line or running)
        if phase is None:
            phase = Phase.OTHER if self._is_after_backward and not running else Phase.FORWARD
        name = ""
        if running:
            name = self._names.known_name(running) if in_engine else self._names.name(running)
        return CodePlace(*(line or ("", 0)), name, phase), in_engine
