"""Result of verified steps: ops that differ from the same ops on full tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.plain_data import Natural
from pytest_dtdispatch.core.results import Count, NoRows
from pytest_dtdispatch.core.text import TextEnum, plural

LIMIT = "wrong"


class Fault(TextEnum):
    """Kind of a difference from the op on full tensors."""

    VALUES = "values"
    SHAPE = "shape"
    DTYPE = "dtype"
    RANKS = "ranks differ"
    LOST_WRITE = "lost write"
    WRAPPER = "wrapper"


@dataclass(frozen=True)
class WrongOp:
    """An op, or a conversion, whose result is wrong.

    Args:
        op: signature with dtypes, global shapes and placements.
        fault: kind of the difference.
        difference: description of the difference at the first of these calls.
        place: source line, module and phase.
        calls: number of wrong calls.
    """

    op: str
    fault: Fault
    difference: str
    place: CodePlace
    calls: Natural = 1

    def __str__(self) -> str:
        times = f" ({self.calls:,}x)" if self.calls > 1 else ""
        return f"{self.op}{times}: {self.fault}, at {self.place}: {self.difference}"


@dataclass(frozen=True)
class Verified(NoRows):
    """Result of verified steps.

    Args:
        name: name of the steps.
        steps: number of steps.
        calls: number of ops on DTensors, including redistributions.
        compared: number of these that were compared.
        wrong_ops: ops whose results are wrong, in order.
        skipped: number of ops that were not compared, by reason.
        plain_ops: number of ops on plain tensors, which are not compared.
        collectives: number of collectives on plain tensors, which are not compared.
        notes: arguments that differ between ranks although their placements do not say so.
        seconds: time that comparing took.
    """

    kind: ClassVar[str] = "verified"
    name: str
    steps: Natural = 1
    calls: Natural = 0
    compared: Natural = 0
    wrong_ops: tuple[WrongOp, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    plain_ops: Natural = 0
    collectives: Natural = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def wrong(self) -> float:
        """Number of wrong ops by signature, line and kind. A failing ``assert`` lists them."""
        return Count(len(self.wrong_ops), 1, map(str, self.wrong_ops))

    @property
    def share(self) -> str:
        """Number of compared ops of all."""
        return f"{self.compared:,} of {plural(self.calls, 'op')} compared"

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Yield the number of wrong ops."""
        yield LIMIT, len(self.wrong_ops)
