"""Which functions the instructions of a call go to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.instructions.callgrind import Callgrind
from pytest_dtdispatch.instructions.model import Profile, greatest, parse_dump

Prepare = Callable[[], "tuple[Any, ...]"]
OUTSIDE = "what is called directly"


class CallProfiler:
    """Profile calls under callgrind."""

    def __init__(self, callgrind: Callgrind) -> None:
        self._callgrind = callgrind
        self._cost_of_event = 0
        _, of_nothing, _ = self._by_python_function(lambda: _calls_nothing(100))
        self._cost_of_event = of_nothing[_name(_nothing.__code__)] // 100

    def __call__(
        self, state: State, fn: Callable[..., Any], prepare: Prepare, kwargs: dict[str, Any]
    ) -> Profile:
        """Make a call twice: once for functions of machine code, and once for those of Python."""
        machine = self._by_machine_function(fn, prepare(), kwargs)
        args = prepare()
        total, python, _ = self._by_python_function(lambda: fn(*args, **kwargs))
        return Profile(state, greatest(machine), sum(machine.values()), greatest(python), total)

    def _by_machine_function(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, int]:
        callgrind = self._callgrind
        callgrind.dump().unlink()
        callgrind.toggle()
        result = fn(*args, **kwargs)
        callgrind.toggle()
        del result
        dump = callgrind.dump()
        with dump.open(encoding="utf-8", errors="replace") as lines:
            costs = parse_dump(lines)
        dump.unlink()
        return costs

    def _by_python_function(self, call: Callable[[], Any]) -> tuple[int, dict[str, int], int]:
        """Read the meter wherever Python enters or leaves a function, its own part of the count left out."""
        toggle, total = self._callgrind.toggle, self._callgrind.total
        costs: Counter[str] = Counter()
        stack = [OUTSIDE]
        events = 0
        last = total()

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal last, events
            toggle()
            events += 1
            costs[stack[-1]] -= self._cost_of_event
            if event in ("call", "return"):
                now = total()
                costs[stack[-1]] += now - last
                last = now
                if event == "call":
                    stack.append(_name(frame.f_code))
                elif len(stack) > 1:
                    stack.pop()
            toggle()

        outer = sys.getprofile()
        sys.setprofile(on_event)
        try:
            toggle()
            result = call()
            toggle()
        finally:
            sys.setprofile(outer)
        del result
        return sum(costs.values()), dict(costs), events


def _calls_nothing(times: int) -> None:
    for _ in range(times):
        _nothing()


def _nothing() -> None:
    pass


def _name(code: CodeType) -> str:
    path = Path(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 and later know the class
    return f"{name} ({'/'.join(path.parts[-2:])}:{code.co_firstlineno})"
