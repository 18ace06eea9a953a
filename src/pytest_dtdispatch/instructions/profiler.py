"""Which functions of Python the instructions of a call go to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_dtdispatch.core.measurement import Profile, Share
from pytest_dtdispatch.instructions.meters import Callgrind

LISTED = 20
OUTSIDE = "what is called directly"


class CallProfiler:
    """Profile calls under callgrind."""

    def __init__(self, callgrind: Callgrind) -> None:
        self._callgrind = callgrind
        self._cost_of_event = 0
        of_nothing = self._by_function(lambda: _calls_nothing(100))
        self._cost_of_event = of_nothing[_code_name(_nothing.__code__)] // 100

    def __call__(
        self, fn: Callable[..., Any], prepare: Callable[[], tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> Profile:
        """Make a call once more, and list the functions that most of its instructions go to."""
        costs = self._by_function(partial(fn, *prepare(), **kwargs))  # no function of Python is added
        return Profile(greatest(costs), sum(costs.values()))

    def _by_function(self, call: Callable[[], Any]) -> Counter[str]:
        """Read the meter wherever Python enters or leaves a function, its own part of the count left out."""
        toggle, total = self._callgrind.toggle, self._callgrind.total
        costs: Counter[str] = Counter()
        stack = [OUTSIDE]
        last = total()

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal last
            toggle()
            costs[stack[-1]] -= self._cost_of_event
            if event in ("call", "return"):
                now = total()
                costs[stack[-1]] += now - last
                last = now
                if event == "call":
                    stack.append(_code_name(frame.f_code))
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
        return costs


def _calls_nothing(times: int) -> None:
    for _ in range(times):
        _nothing()


def _nothing() -> None:
    pass


def _code_name(code: CodeType) -> str:
    path = Path(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 and later know the class
    return f"{name} ({'/'.join(path.parts[-2:])}:{code.co_firstlineno})"


def greatest(costs: Mapping[str, int]) -> tuple[Share, ...]:
    """Pick the functions with most instructions, the greatest first."""
    shares = [Share(function, count) for function, count in costs.items() if count > 0]
    return tuple(sorted(shares, key=lambda share: (-share.instructions, share.function))[:LISTED])
