"""Where the instructions of a call went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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
class CalledFunction:
    """A function where it was called: all its calls by one chain of callers are one.

    Args:
        depth: how many callers it has, up to the call that was profiled; 0 for that itself.
        function: its name, and where it is.
        instructions: its own, with the machine code that it called, without functions of Python it called.
    """

    depth: int
    function: str
    instructions: int


@dataclass(frozen=True)
class Profile:
    """Where the instructions of one call went.

    Args:
        machine: functions of machine code, those with most instructions first.
        machine_total: instructions of the call, in functions listed and not.
        python: functions of Python, each with the machine code that it called.
        python_total: instructions of a second call, which was made to tell Python's functions apart.
        calls: every function of Python that this second call ran, each before those that it called; the
            last one before it that is less deep called it.
    """

    machine: tuple[Share, ...]
    machine_total: int
    python: tuple[Share, ...] = ()
    python_total: int = 0
    calls: tuple[CalledFunction, ...] = ()


def paths(calls: Iterable[CalledFunction]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Give the chain of callers of each function that has instructions, itself last, and its instructions.

    Example:
        >>> of_call = [CalledFunction(0, "call", 5), CalledFunction(1, "add", 7), CalledFunction(1, "mul", 0)]
        >>> list(paths(of_call))
        [(('call',), 5), (('call', 'add'), 7)]
    """
    chain: list[str] = []
    for called in calls:
        chain[called.depth :] = [called.function]
        if called.instructions > 0:
            yield tuple(chain), called.instructions
