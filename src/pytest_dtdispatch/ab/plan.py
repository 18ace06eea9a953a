"""In which order the processes of two sides run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pytest_dtdispatch.ab.model import BASE, HEAD

T = TypeVar("T")


def abba(pairs: int) -> tuple[str, ...]:
    """Give the side of each process: each second pair is turned round.

    A machine that grows slower at a steady rate then slows both sides by the same amount.

    Example:
        >>> abba(3)
        ('base', 'head', 'head', 'base', 'base', 'head')
    """
    return tuple(side for pair in range(pairs) for side in ((BASE, HEAD), (HEAD, BASE))[pair % 2])


def dealt(processes: Sequence[T]) -> tuple[list[T], list[T]]:
    """Deal processes that ran one after the other to base and head, as :func:`abba` orders them.

    Example:
        >>> dealt([1, 2, 3, 4])
        ([1, 4], [2, 3])
    """
    order = abba(len(processes) // 2)
    sides: dict[str, list[T]] = {BASE: [], HEAD: []}
    for side, process in zip(order, processes, strict=True):
        sides[side].append(process)
    return sides[BASE], sides[HEAD]
