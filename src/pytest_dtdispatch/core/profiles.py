"""Where the instructions of a call went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Instructions of one function, without those of other functions that it calls.

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
        functions: of Python, each with the machine code that it called, those with most instructions first.
        total: instructions of the call, in functions listed and not.
    """

    functions: tuple[Share, ...]
    total: int
