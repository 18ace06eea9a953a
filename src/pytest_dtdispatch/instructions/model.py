"""Where the instructions of a call went: to which functions, of machine code and of Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import State

LISTED = 20  # functions of each kind
RECURSION = re.compile(r"'\d+$")


@dataclass(frozen=True)
class Share:
    """Instructions of one function, without those of what it calls.

    Args:
        function: its name, and where it is.
        instructions: of all its calls together.
    """

    function: str
    instructions: int


@dataclass(frozen=True)
class Profile:
    """Where the instructions of one call went.

    Args:
        state: of the call.
        machine: functions of machine code, those with most instructions first.
        machine_total: instructions of the call, in functions listed and not.
        python: functions of Python, each with the machine code that it called.
        python_total: instructions of a second call, which was made to tell Python's functions apart.
    """

    state: State
    machine: tuple[Share, ...]
    machine_total: int
    python: tuple[Share, ...] = ()
    python_total: int = 0


def greatest(costs: Mapping[str, int]) -> tuple[Share, ...]:
    """Pick the functions with most instructions, the greatest first.

    Example:
        >>> greatest({"f": 1, "g": 3, "h": 0})
        (Share(function='g', instructions=3), Share(function='f', instructions=1))
    """
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
            name = _name(value, names)
            function = name if key == "fn" else function
        elif separator and key == "calls":
            next(rest, "")  # what the call cost, which belongs to the function that is called
        elif line[:1] in "0123456789+-*" and (cost := _cost(line)):
            costs[function] = costs.get(function, 0) + cost
    return costs


def _name(value: str, names: dict[str, str]) -> str:
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
