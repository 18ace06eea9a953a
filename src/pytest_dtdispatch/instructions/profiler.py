"""Which functions the instructions of a call go to, of machine code and of Python."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_dtdispatch.core.profiles import CalledFunction, Profile, Share
from pytest_dtdispatch.instructions.meters import Callgrind

LISTED = 20  # functions of each kind
RECURSION = re.compile(r"'\d+$")
OUTSIDE = "what is called directly"


class CallProfiler:
    """Profile calls under callgrind."""

    def __init__(self, callgrind: Callgrind) -> None:
        self._callgrind = callgrind
        self._cost_of_event = 0
        of_nothing = by_function(self._by_python_call(lambda: _calls_nothing(100)))
        self._cost_of_event = of_nothing[_code_name(_nothing.__code__)] // 100

    def __call__(
        self, fn: Callable[..., Any], prepare: Callable[[], tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> Profile:
        """Make a call twice: once for functions of machine code, and once for those of Python."""
        machine = self._by_machine_function(fn, prepare(), kwargs)
        args = prepare()
        calls = self._by_python_call(partial(fn, *args, **kwargs))  # no function of Python is added
        python = by_function(calls)
        totals = sum(machine.values()), sum(python.values())
        return Profile(greatest(machine), totals[0], greatest(python), totals[1], calls)

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

    def _by_python_call(self, call: Callable[[], Any]) -> tuple[CalledFunction, ...]:
        """Read the meter wherever Python enters or leaves a function, its own part of the count left out."""
        toggle, total = self._callgrind.toggle, self._callgrind.total
        root = _Node(OUTSIDE)
        stack = [root]
        last = total()

        def on_event(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal last
            toggle()
            stack[-1].instructions -= self._cost_of_event
            if event in ("call", "return"):
                now = total()
                stack[-1].instructions += now - last
                last = now
                if event == "call":
                    stack.append(stack[-1].calling(_code_name(frame.f_code)))
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
        return tuple(root.flat())


@dataclass
class _Node:
    """A function of Python where it is called."""

    function: str
    instructions: int = 0
    called: dict[str, _Node] = field(default_factory=dict)

    def calling(self, function: str) -> _Node:
        """Give the node of a function that this one calls."""
        return self.called.setdefault(function, _Node(function))

    def flat(self) -> Iterator[CalledFunction]:
        """Give this function, and then those that it calls."""
        pending = [(0, self)]
        while pending:
            depth, node = pending.pop()
            yield CalledFunction(depth, node.function, node.instructions)
            pending += [(depth + 1, each) for each in reversed(node.called.values())]


def by_function(calls: Iterable[CalledFunction]) -> Counter[str]:
    """Add up the instructions of each function, whoever called it."""
    costs: Counter[str] = Counter()
    for called in calls:
        costs[called.function] += called.instructions
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


def parse_dump(lines: Iterable[str]) -> dict[str, int]:
    """Read how many instructions each function has in a dump of callgrind's, without those it calls.

    Source: "Callgrind Format Specification", in valgrind's manual.

    Example:
        >>> parse_dump(["fn=(1) eval", "16 400", "cfn=(2) add", "calls=1 5", "16 70", "fn=(2)", "5 70"])
        {'eval': 400, 'add': 70}
    """
    names: dict[str, str] = {}
    costs: dict[str, int] = {}
    function = ""
    rest = iter(lines)
    for line in rest:
        key, separator, value = line.rstrip("\n").partition("=")
        if separator and key in ("fn", "cfn"):
            name = _read_name(value, names)
            function = name if key == "fn" else function
        elif separator and key == "calls":
            next(rest, "")  # what the call cost, which belongs to the function that is called
        elif line[:1] in "0123456789+-*" and (cost := _cost(line)):
            costs[function] = costs.get(function, 0) + cost
    return costs


def _read_name(value: str, names: dict[str, str]) -> str:
    """Read ``(7) name``, which names function 7, or ``(7)``, which was named before.

    A function that calls itself is told apart as ``name'2``: here it is one function.
    """
    number, _, name = value.partition(" ")
    if name:
        names[number] = RECURSION.sub("", name)
    return names.get(number, value)


def _cost(line: str) -> int:
    fields = line.split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
