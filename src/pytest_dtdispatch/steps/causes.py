"""What happened in several steps, one line a cause: with its steps, and the range of what changed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby, takewhile
from typing import Protocol

# A number that stands alone: those of f32, S0 and dp7 are parts of names.
NUMBER = re.compile(r"(?<![\w.#])(?:\d{1,3}(?:,\d{3})+(?= bytes)|\d+)(?![\w.])")


class Happened(Protocol):
    """What may happen in a step."""

    @property
    def origin(self) -> Hashable:
        """What it has in common with others of the same cause."""


def by_cause(steps: Sequence[Iterable[Happened]]) -> list[str]:
    """List what happened in each of some steps, a line for each cause.

    Example:
        >>> by_cause([[], []])
        []
    """
    texts: defaultdict[Hashable, list[str]] = defaultdict(list)
    times: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
    for number, of_step in enumerate(steps, 1):
        met: Counter[Hashable] = Counter()
        for one in of_step:
            # Two of the same origin in one step are two causes.
            key: Hashable = (one.origin, met[one.origin])
            met[one.origin] += 1
            texts[key].append(str(one))
            times[key][number] += 1
    lines: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for key, alike in texts.items():
        lines[ranged(alike)].update(times[key])
    return [f"{text}{_when(counts, len(steps))}" for text, counts in lines.items()]


def ranged(texts: Sequence[str]) -> str:
    """Write texts as one: where they differ in numbers alone each as a range, else the first and the last.

    Example:
        >>> ranged(["f32[8,9]R, was 8", "f32[8,10]R, was 9", "f32[8,11]R, was 10"])
        'f32[8,9-11]R, was 8-10'
    """
    if len({NUMBER.sub("", text) for text in texts}) > 1:
        words = texts[-1].split(" ")
        pairs = zip(texts[0].split(" "), words, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return f"{texts[0]} ... {' '.join(words[shared:])}"
    ranges = iter([_range(numbers) for numbers in zip(*map(NUMBER.findall, texts), strict=True)])
    return NUMBER.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    by_size = sorted(numbers, key=lambda number: int(number.replace(",", "")))
    return by_size[0] if by_size[0] == by_size[-1] else f"{by_size[0]}-{by_size[-1]}"


def _when(counts: Counter[int], steps: int) -> str:
    """Say how often something happened, and where there are several steps, in which of them."""
    often = sorted(set(counts.values()))
    if steps == 1:
        return f" ({often[0]}x)" if often[0] > 1 else ""
    times = {1: "once", 2: "twice"}.get(often[0], f"{often[0]} times")
    if len(often) > 1:
        times = f"{often[0]} to {often[-1]} times"
    return f" ({times} in {'step' if len(counts) == 1 else 'each of steps'} {_numbers(sorted(counts))})"


def _numbers(numbers: Sequence[int]) -> str:
    """Write step numbers, neighbours as a range: ``1-3, 5``."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
