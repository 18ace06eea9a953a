"""What ranks must settle before they repeat a real collective: of which op, and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from pytest_dtdispatch.core.world import ranks_text
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.ranks.exchange import Exchange


class Agreement:
    """The agreements of one test, in the order that every rank comes to them.

    With a fake process group no rank waits for another, and nothing is agreed on.

    Example:
        >>> from pytest_dtdispatch.core.world import World
        >>> from torch.distributed import HashStore
        >>> Agreement(Exchange(HashStore(), World(), 1.0), "1").come_to("add.Tensor")
    """

    def __init__(self, exchange: Exchange, test: str) -> None:
        self._exchange = exchange
        self._test = test
        self._subject = ""
        self._count = 0

    def come_to(self, subject: str) -> None:
        """Meet the other ranks at what is measured next."""
        __tracebackhide__ = True
        self._subject = subject
        if _is_real():
            self._settle(["at the start of", subject])

    def rounds(self, numbers: Sequence[int], propagation: str) -> tuple[int, ...] | None:
        """Settle how many rounds are taken, how many in a row, and so on: the least of all proposals."""
        __tracebackhide__ = True
        if not _is_real():
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


def _is_real() -> bool:
    return dist.is_initialized() and str(dist.get_backend()) != "fake"
