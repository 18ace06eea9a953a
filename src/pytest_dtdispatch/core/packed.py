"""Many whole numbers in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

KEPT = "_packed_"


class Packed:
    """A field of a dataclass that keeps whole numbers in eight bytes each, and gives them as a tuple.

    A tuple of a million samples takes 40 MB. What does not fit into eight bytes is kept as it is given.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Taken:
        ...     values: tuple[int, ...] = Packed()
        >>> Taken(range(3)).values, Taken((1.5, 2**64)).values, Taken([7]) == Taken((7,))
        ((0, 1, 2), (1.5, 18446744073709551616), True)
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._kept = f"{KEPT}{name}"

    def __get__(self, instance: Any, owner: type) -> tuple[int, ...]:
        if instance is None:
            raise AttributeError("a field of values has no default")  # dataclasses ask for it so
        return tuple(vars(instance)[self._kept])

    def __set__(self, instance: Any, values: Iterable[int]) -> None:
        vars(instance)[self._kept] = _packed(values)


def kept(instance: object, field: str) -> Iterable[int]:
    """Give the numbers of such a field one by one, without a tuple of all of them."""
    numbers: Iterable[int] = vars(instance)[f"{KEPT}{field}"]
    return numbers


def _packed(values: Iterable[int]) -> array[int] | tuple[int, ...]:
    given = values if isinstance(values, (tuple, list, array)) else tuple(values)
    try:
        return array("q", given)
    except (OverflowError, TypeError):
        return tuple(given)
