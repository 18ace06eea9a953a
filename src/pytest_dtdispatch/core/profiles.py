"""Where the instructions of a call went."""

from __future__ import annotations

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
class Profile:
    """Where the instructions of one call went.

    Args:
        machine: functions of machine code, those with most instructions first.
        machine_total: instructions of the call, in functions listed and not.
        python: functions of Python, each with the machine code that it called.
        python_total: instructions of a second call, which was made to tell Python's functions apart.
    """

    machine: tuple[Share, ...]
    machine_total: int
    python: tuple[Share, ...] = ()
    python_total: int = 0
