"""Where a program is at each moment, line by line, for a few steps; and the cells of a budget made of it."""

from __future__ import annotations

import bisect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

from pytest_dtdispatch.budget.model import Cell
from pytest_dtdispatch.budget.parts import Course, same_course
from pytest_dtdispatch.core.places import CodePlace, Phase
from pytest_dtdispatch.measuring.places import FrameOwner, Frames, ModuleNames
from pytest_dtdispatch.torchapi.compiler import uncompiled


class Moment(NamedTuple):
    """From when on the program is at a place.

    Args:
        noted_ns: when it came there, and noting that began.
        at_ns: when that ended, and the program went on.
        place: where it is.
        in_engine: whether that is code of the user's which autograd's engine called, as a checkpoint does.
    """

    noted_ns: int
    at_ns: int
    place: CodePlace
    in_engine: bool


def pieces(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> list[tuple[Moment, float]]:
    """Cut a time where the program went from one place to the next; give the share that each has of it.

    Time that noting took belongs to no place.

    Example:
        >>> here = Moment(0, 0, CodePlace("a.py", 1), False)
        >>> there = Moment(30, 35, CodePlace("a.py", 2), False)
        >>> [(moment.place.line, share) for moment, share in pieces([here, there], 20, 45)]
        [(1, 0.5), (2, 0.5)]
    """
    first = max(bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.noted_ns) - 1, 0)
    last = max(bisect.bisect_left(moments, end_ns, key=lambda moment: moment.noted_ns), first + 1)
    inside = moments[first:last]
    if not inside:
        return []
    ends = [*(moment.noted_ns for moment in inside[1:]), end_ns]
    lengths = [
        max(0, min(end, end_ns) - max(moment.at_ns, begin_ns))
        for moment, end in zip(inside, ends, strict=True)
    ]
    if not sum(lengths):
        return [(moment, 1.0) for moment in inside[:1]]
    shares = ((moment, length / sum(lengths)) for moment, length in zip(inside, lengths, strict=True))
    return [(moment, share) for moment, share in shares if share]


def noting_ns(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> int:
    """Add up the time of a span that was spent on noting.

    Example:
        >>> noting_ns([Moment(30, 35, CodePlace("a.py", 2), False)], 20, 32)
        2
    """
    first = bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.at_ns)
    last = bisect.bisect_left(moments, end_ns, key=lambda moment: moment.noted_ns)
    inside = moments[first:last]
    return sum(min(each.at_ns, end_ns) - max(each.noted_ns, begin_ns) for each in inside)


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
    def noting(self) -> Iterator[None]:
        """Note what the program does inside; another tracer of Python, as a debugger is one, must not run."""
        self._stack.clear()
        self._is_after_backward = False
        self._enter, self._trace = uncompiled(self._on_entry), uncompiled(self._on_event)
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    @contextmanager
    def noting_inside(self, innermost: FrameType | None) -> Iterator[None]:
        """Note it in functions too that run already, from the innermost of them outwards."""
        running: list[tuple[FrameOwner, FrameType]] = []
        while innermost is not None:
            kind = self._frames.known.get(id(innermost.f_code)) or self._frames.learn(innermost.f_code)
            if kind is not FrameOwner.NOTHING:
                running.insert(0, (kind, innermost))
            innermost = innermost.f_back
        with self.noting():
            for kind, frame in running:
                frame.f_trace_lines, frame.f_trace = kind is FrameOwner.USER, self._on_event
            self._stack += running
            self._note(time.perf_counter_ns())
            try:
                yield
            finally:
                for _, frame in running:
                    frame.f_trace = None

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        kind = self._frames.known.get(id(code)) or self._frames.learn(code)
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
            kind = self._frames.known.get(id(frame.f_code))
            if kind is FrameOwner.ENGINE and not self._is_in_engine():
                self._is_after_backward = True
        if event != "exception":
            self._note(began)
        return self._trace

    def _is_in_engine(self) -> bool:
        return any(kind is FrameOwner.ENGINE for kind, _ in self._stack)

    def _note(self, noted_ns: int) -> None:
        place, in_engine = self._place()
        self._last_line_ns = time.perf_counter_ns()
        self.moments.append(Moment(noted_ns, self._last_line_ns, place, in_engine))

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
            elif kind is FrameOwner.ENGINE and phase is None:
                in_engine, phase = bool(line or running), Phase.BACKWARD
            elif kind in _PHASES and phase is None:
                phase = _PHASES[kind]
        if phase is None:
            phase = Phase.OTHER if self._is_after_backward and not running else Phase.FORWARD
        return CodePlace(*(line or ("", 0)), self._name(running, in_engine), phase), in_engine

    def _name(self, running: list[Any], in_engine: bool) -> str:
        if not running:
            return ""
        return self._names.known_name(running) if in_engine else self._names.name(running)


_PHASES = {
    FrameOwner.BACKWARD: Phase.BACKWARD,
    FrameOwner.CLIPPING: Phase.CLIPPING,
    FrameOwner.OPTIMIZER: Phase.OPTIMIZER,
}


Shares = list[tuple["CodePlace | None", float]]  # of a slice, at places


def cells_of(
    courses: Sequence[Course], moments: Sequence[Moment], located: Sequence[Course]
) -> tuple[Cell, ...]:
    """Add up the slices of several steps by part, op and place, and divide by the number of steps.

    Args:
        courses: what each step consists of.
        moments: where the program was while steps were located.
        located: what each of those consists of, on the clock of the moments. A step of the same course gives
            its places to the slices of others; of a step of another course no places are known.
    """
    ns: Counter[tuple[str, str, CodePlace | None]] = Counter()
    timing: Counter[tuple[str, str, CodePlace | None]] = Counter()
    calls: Counter[tuple[str, str, CodePlace | None]] = Counter()
    places = _Places(moments, located)
    for course in courses:
        for one, shares in zip(course, places.of(course), strict=True):
            for number, (place, share) in enumerate(shares):
                key = str(one.part), one.op, place
                ns[key] += (one.end_ns - one.begin_ns - one.timing_ns) * share  # type: ignore[assignment]
                timing[key] += one.timing_ns * share  # type: ignore[assignment]
                calls[key] += one.calls if number == 0 else 0
    count = len(courses)
    return tuple(
        Cell(*key, spent / count, calls[key] / count, timing[key] / count) for key, spent in ns.items()
    )


class _Places:
    """Where the slices of a step were spent, by located steps of the same course."""

    def __init__(self, moments: Sequence[Moment], located: Sequence[Course]) -> None:
        self._moments = moments
        self._located = located
        self._known: dict[int, list[Shares]] = {}

    def of(self, course: Course) -> list[Shares]:
        """Give the shares of places of each slice of a step."""
        for number, one in enumerate(self._located):
            if same_course(one, course):
                if number not in self._known:
                    self._known[number] = list(self._find(one))
                return self._known[number]
        return [[(None, 1.0)]] * len(course)

    def _find(self, course: Course) -> Iterator[Shares]:
        made: dict[int, CodePlace] = {}  # where nodes of autograd were made, by their number
        backward: CodePlace | None = None
        for one in course:
            span = (one.since_ns,) * 2 if one.since_ns >= 0 else (one.begin_ns, one.end_ns)
            found = pieces(self._moments, *span)
            origin = made.get(one.running)
            in_code = [
                (_in_module(moment.place, origin), share)
                for moment, share in found
                if moment.in_engine == one.in_engine
            ]
            if in_code and one.made >= 0:
                made[one.made] = in_code[-1][0]
            if one.in_engine and not in_code:
                backward = found[-1][0].place if found else backward
                yield [(_in_backward(origin or backward), 1.0)]
            else:
                total = sum(share for _, share in in_code)
                yield [(place, share / total) for place, share in in_code] or [(None, 1.0)]


def _in_module(place: CodePlace, origin: CodePlace | None) -> CodePlace:
    """Put what a node calls outside of modules, as a function of the user's, in the module that made it."""
    return replace(place, module=origin.module) if origin and not place.module else place


def _in_backward(place: CodePlace | None) -> CodePlace | None:
    if place is None:
        return None
    return replace(place, phase=Phase.BACKWARD)
