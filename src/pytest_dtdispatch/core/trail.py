"""Collectives and DTensor ops of each rank in a test, and the first difference between ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from pytest_dtdispatch.core.environment import ranks_text
from pytest_dtdispatch.core.plain_data import Natural
from pytest_dtdispatch.core.text import grouped


class RanCollective(NamedTuple):
    """A collective, and the source line that ran it."""

    kind: str
    line: str
    bytes: Natural

    @property
    def compared_bytes(self) -> int:
        """Size that is equal on all ranks; others may have tensors of other sizes on some ranks."""
        return self.bytes if self.kind in ("all_reduce", "broadcast") else 0


class CalledOp(NamedTuple):
    """A signature of an op, and the source line that called it; the line is empty if unknown."""

    signature: str
    line: str
    mesh_size: Natural


@dataclass(frozen=True)
class Trail:
    """Collectives of a rank in their order, and distinct signatures in the order of their first calls."""

    collectives: tuple[RanCollective, ...] = ()
    ops: tuple[CalledOp, ...] = ()

    def __add__(self, other: Trail) -> Trail:
        return Trail(self.collectives + other.collectives, tuple(dict.fromkeys(self.ops + other.ops)))


def collective_difference(by_rank: Mapping[int, Trail]) -> str:
    """Describe the first collective in which ranks differ; return an empty string if they ran equal ones.

    Equal collectives on two lines, as in the branches of an ``if``, are a difference only if the next ones
    differ too. Otherwise, sizes of collectives of equal tensors are compared.

    Example:
        >>> one = Trail((RanCollective("all_reduce", "t.py:7", 12),))
        >>> collective_difference({0: one, 1: Trail()})
        'ranks differ first in collective 1: rank 0 ran all_reduce at t.py:7; rank 1 ran no further one'
    """
    columns = [*zip_longest(*(trail.collectives for trail in by_rank.values()))]
    kinds = [{one and one.kind for one in column} for column in columns]
    lines = [{one and (one.kind, one.line) for one in column} for column in columns]
    sizes = [{one and (one.kind, one.compared_bytes) for one in column} for column in columns]
    # Equal collectives on several lines, and the next ones on one line, are branches.
    single = [len(found) == 1 for found in lines] + [False]
    by_line = [n for n in range(len(columns)) if not (single[n] or (len(kinds[n]) == 1 and single[n + 1]))]
    by_size = [n for n, found in enumerate(sizes) if len(found) > 1]
    if by_line:
        number, shown = by_line[0], "{0.kind} at {0.line}"
    elif by_size:
        number, shown = by_size[0], "{0.kind} of {0.bytes:,} bytes at {0.line}"
    else:
        return ""
    texts = (shown.format(one) if one else "no further one" for one in columns[number])
    who = grouped(zip(texts, by_rank, strict=True))
    each = "; ".join(f"{ranks_text(ranks)} ran {text}" for text, ranks in who.items())
    return f"ranks differ first in collective {number + 1}: {each}"


def shape_difference(by_rank: Mapping[int, Trail]) -> str:
    """Describe the first op whose global shapes differ between ranks; return an empty string if all agree.

    Ops on meshes of some of the ranks are skipped, as other ranks have other DTensors there.

    Example:
        >>> ops = [CalledOp(f"sum.default(f32[{rows},4]S0)@2", "t.py:7", 2) for rows in (8, 9)]
        >>> shape_difference({rank: Trail(ops=(op,)) for rank, op in enumerate(ops)}).partition(":")[2]
        ' rank 0 sum.default(f32[8,4]S0)@2; rank 1 sum.default(f32[9,4]S0)@2, at t.py:7'
    """
    whole = len(by_rank)
    called = {
        rank: grouped(
            ((re.sub(r"\[[\d,]*\]", "[]", op.signature), op.line), op.signature)  # without shapes
            for op in trail.ops
            if op.mesh_size == whole
        )
        for rank, trail in by_rank.items()
    }
    for form in next(iter(called.values()), {}):
        signatures = {rank: of_rank.get(form, []) for rank, of_rank in called.items()}
        if len({*map(len, signatures.values())}) > 1:  # ranks that call it for other DTensors
            continue
        for each in zip(*signatures.values(), strict=True):
            who = grouped(zip(each, signatures, strict=True))
            if len(who) > 1:
                texts = (f"{ranks_text(ranks)} {signature}" for signature, ranks in who.items())
                at = f", at {form[1]}" if form[1] else ""
                return f"global shapes of a DTensor differ between ranks: {'; '.join(texts)}{at}"
    return ""
