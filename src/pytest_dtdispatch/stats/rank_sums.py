"""Ranks of samples, and how often each sum of ranks comes up when nothing differs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence


def doubled_midranks(values: Sequence[float]) -> list[int]:
    """Rank values from 1; equal ones share the mean of their ranks. Doubled, so that all are whole numbers.

    Example:
        >>> doubled_midranks([10, 30, 20, 20])
        [2, 8, 5, 5]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0] * len(values)
    start = 0
    for _, tied in itertools.groupby(order, key=lambda i: values[i]):
        places = list(tied)
        for place in places:
            ranks[place] = 2 * start + len(places) + 1
        start += len(places)
    return ranks


def sums_of_choices(ranks: Sequence[int], size: int) -> list[int]:
    """Count in how many ways ``size`` of the ranks add up to each sum.

    The counts of a size are kept in one whole number, a field of bits for each sum, so that adding a rank to
    all of them is one shift.

    Args:
        ranks: whole numbers of at least 0.
        size: how many are chosen.

    Returns:
        At index s the number of choices whose sum is s.

    Example:
        >>> sums_of_choices([1, 2, 3], 2)
        [0, 0, 0, 1, 1, 1, 0]
    """
    width = (len(ranks) + 7) // 8 + 1  # bytes: no count passes 2 ** len(ranks)
    chosen = [1] + [0] * size
    for taken, rank in enumerate(ranks):
        for k in range(min(size, taken + 1), 0, -1):
            chosen[k] += chosen[k - 1] << (8 * width * rank)
    total = sum(ranks) + 1
    packed = chosen[size].to_bytes(width * total, "little")
    return [int.from_bytes(packed[width * s : width * (s + 1)], "little") for s in range(total)]


@functools.lru_cache(maxsize=32)
def mann_whitney_counts(base: int, head: int) -> tuple[int, ...]:
    """Count the orders of untied samples that give each U: how many pairs have the head's sample above.

    Source: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger
    than the Other" (1947).

    Args:
        base: number of samples.
        head: number of samples.

    Returns:
        At index u, from 0 to ``base * head``, the number of orders.

    Example:
        >>> mann_whitney_counts(2, 2)
        (1, 1, 2, 1, 1)
    """
    least = head * (head + 1) // 2
    return tuple(sums_of_choices(range(1, base + head + 1), head)[least : least + base * head + 1])
