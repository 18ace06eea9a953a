"""Ranks in lockstep: before a real collective is repeated they settle of which op, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from pytest_dtdispatch.core.world import ranks_text
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.ranks.exchange import Exchange


def has_real_group() -> bool:
    """Say whether collectives of this process reach other ranks."""
    return dist.is_initialized() and str(dist.get_backend()) != "fake"


class Lockstep:
    """What ranks settle in one test, in the order that every rank comes to it.

    Without a real process group no rank waits for another, and nothing is settled.

    Example:
        >>> from pytest_dtdispatch.core.world import World
        >>> from torch.distributed import HashStore
        >>> Lockstep(Exchange(HashStore(), World(), 1.0), "1").come_to("add.Tensor")
    """

    def __init__(
        self, exchange: Exchange, test: str, has_real_group: Callable[[], bool] = has_real_group
    ) -> None:
        self._exchange = exchange
        self._test = test
        self._has_real_group = has_real_group
        self._subject = ""
        self._count = 0

    def come_to(self, subject: str) -> None:
        """Meet the other ranks at what is measured next."""
        __tracebackhide__ = True
        self._subject = subject
        if self._has_real_group():
            self._settle(["at the start of", subject])

    def rounds(self, numbers: Sequence[int], propagation: str) -> tuple[int, ...] | None:
        """Settle how many rounds are taken, how many in a row, and so on: the least of all proposals."""
        __tracebackhide__ = True
        if not self._has_real_group():
            return None
        what = ["at the rounds of", f"{self._subject} (propagation: {propagation})"]
        return tuple(map(min, *self._settle(what, *numbers)))

    def _settle(self, what: list[str], *numbers: int) -> list[list[int]]:
        __tracebackhide__ = True
        key = f"agree/{self._test}/{self._count}"
        self._count += 1
        found = self._exchange.meet(key, [what, numbers], f"come to {self._subject}")
        if len({tuple(theirs) for theirs, _ in found.values()}) > 1:
            raise RanksError(f"ranks measure different things: {_said(found)}")
        return [numbers for _, numbers in found.values()]


def _said(found: Mapping[int, Any]) -> str:
    who: dict[str, list[int]] = {}
    for rank, ((verb, subject), _) in found.items():
        who.setdefault(f"{verb} {subject}", []).append(rank)
    return "; ".join(f"{ranks_text(ranks)} {said}" for said, ranks in who.items())
