"""What may happen in a step, with where in the program it happened; and lists of it, a line a cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby, takewhile
from typing import ClassVar, TypeAlias

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.text import fold_layers

ASKED = "redistribute"  # stands for the op where a program asked for a redistribution


class QueriedCache(str, Enum):
    """The cache that had no answer when an op propagated."""

    NATIVE = "native cache"
    PYTHON = "Python cache"
    NONE = "no cache"

    __str__ = str.__str__


class Remedy(str, Enum):
    """What avoids a miss; empty if no remedy is sure."""

    NONE = ""
    NUMBER = "give the number as a 0-dim tensor: its value is no part of the key"
    SHAPE = "pad to a few sizes: each new shape propagates once"
    LENGTH = "give lists of one length"
    UNCACHED = "torch does not cache this op: run it on local tensors"
    CLEARED = "do not clear the caches in the step"

    __str__ = str.__str__


@dataclass(frozen=True)
class StepEvent:
    """Something that happened in a step.

    Args:
        place: where in the program; None if it is not known.
    """

    verb: ClassVar[str]  # what a step did
    common: ClassVar[tuple[str, ...]]  # what it shares with others that may differ in size alone
    place: CodePlace | None = field(default=None, compare=False, kw_only=True)

    @property
    def origin(self) -> Hashable:
        """What it has in common with others of the same cause."""
        return *(getattr(self, name) for name in self.common), self.place

    def _at_place(self, text: str) -> str:
        return f"{text}, at {self.place}" if self.place else text


@dataclass(frozen=True)
class Miss(StepEvent):
    """One call whose sharding was propagated.

    Args:
        signature: the call.
        reason: what in it was not seen before, or why no cache could answer.
        queried: the cache that was asked.
        cause: the reason without the values that may differ from step to step.
        call: calls that its thread made before it in the step.
        elsewhere: whether another thread made it than the one that runs the step.
        remedy: what avoids it.
        values: the first value that differs, now and before.
        is_direct: whether the program called the op itself, and neither torch's Python code nor autograd.
        place: where in the program it was made; None if it is not known.
    """

    verb = "missed"
    common = ("op", "call", "elsewhere", "cause")
    signature: str
    reason: str
    queried: QueriedCache
    cause: str = field(default="", compare=False)
    call: int = field(default=0, compare=False)
    elsewhere: bool = False
    remedy: Remedy = field(default=Remedy.NONE, compare=False)
    values: tuple[str, ...] = field(default=(), compare=False)
    is_direct: bool = field(default=True, compare=False)

    @property
    def op(self) -> str:
        """The op that was called."""
        return self.signature.partition("(")[0]

    def __str__(self) -> str:
        return self._at_place(f"{self.signature}: {self.reason}")


@dataclass(frozen=True)
class Redistribution(StepEvent):
    """One DTensor whose placements were changed, asked for or implied by an op.

    Args:
        op: the op that implied it, or ``redistribute`` if the program asked for it.
        tensor: dtype and global shape.
        source: placements before, one for each mesh dimension.
        target: placements after.
        bytes: that its collectives handled on this rank, by shape: for each the larger of input and output,
            as in nccl-tests (its doc/PERFORMANCE.md); 0 if nothing is sent.
        tensor_number: equal for one tensor that nothing was written to in between; 0 if it is not known.
        result_number: that of the result.
        operands: tensors that the op which implied it takes; 0 if it is explicit.
        place: where in the program it was made; None where that is not known.
    """

    verb = "redistributed"
    common = ("op", "source", "target")
    op: str
    tensor: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    bytes: int
    tensor_number: int = field(default=0, compare=False)
    result_number: int = field(default=0, compare=False)
    operands: int = field(default=0, compare=False)

    @property
    def is_implied(self) -> bool:
        """Whether an op made it by itself, and nobody asked for it."""
        return self.op != ASKED

    def __str__(self) -> str:
        change = change_text(self.source, self.target)
        return self._at_place(f"{self.op}: {self.tensor} {change}, {self.bytes:,} bytes")


@dataclass(frozen=True)
class Collective(StepEvent):
    """One collective that ran, whoever called it.

    Args:
        kind: by the name of torch's function: ``all_gather``.
        bytes: that it handled on this rank, by shape, as in a redistribution; not compared by ``==``.
        elsewhere: what torch runs in its place on a mesh of another device; empty if it runs the same.
        place: where in the program it was called; None if it is not known.
    """

    verb = "ran"
    common = ("kind",)
    kind: str
    bytes: int = field(default=0, compare=False)
    elsewhere: str = field(default="", compare=False)

    def __str__(self) -> str:
        elsewhere = f" ({self.elsewhere})" if self.elsewhere else ""
        return self._at_place(f"{self.kind}: {self.bytes:,} bytes{elsewhere}")


@dataclass(frozen=True)
class Wrapping(StepEvent):
    """One DTensor that was made of a local tensor.

    Args:
        name: of the function: ``from_local``, ``distribute_tensor``, ``to_local``, or ``DTensor`` if it was
            constructed; in backward that of the forward function.
        tensor: dtype and global shape.
        placements: of the DTensor, one for each mesh dimension.
        tensor_number: equal for one local tensor, or one whole tensor that nothing was written to; 0 in
            backward, or if it is not known.
        is_parameter: whether it was made of a parameter.
        place: where in the program it was made or unwrapped; None if it is not known.
    """

    verb = "wrapped"
    common = ("name", "placements")
    name: str
    tensor: str
    placements: tuple[str, ...]
    tensor_number: int = field(default=0, compare=False)
    is_parameter: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self._at_place(f"{self.name}: {self.tensor} {' '.join(self.placements)}")


@dataclass(frozen=True)
class Unwrapping(Wrapping):
    """One DTensor that was unwrapped into its local tensor."""

    verb = "unwrapped"


AnyEvent: TypeAlias = Miss | Redistribution | Collective | Wrapping | Unwrapping


def change_text(source: Iterable[str], target: Iterable[str]) -> str:
    """Write placements before and after a redistribution.

    Example:
        >>> change_text(["P", "S0"], ["R", "S0"])
        'P S0 -> R S0'
    """
    return f"{' '.join(source)} -> {' '.join(target)}"


# A number that stands alone: those of f32, S0 and dp7 are parts of names.
NUMBER = re.compile(r"(?<![\w.#])(?:\d{1,3}(?:,\d{3})+(?= bytes)|\d+)(?![\w.])")


MODULE = "\0"  # stands in a text for the name of the module
Told = tuple[str, str]  # such a text, and the name


def told(one: StepEvent) -> Told:
    """Write an event without the name of its module, and give the name."""
    if one.place is None or not one.place.module:
        return str(one), ""
    return str(replace(one, place=replace(one.place, module=MODULE))), one.place.module


def named(events: Sequence[Told]) -> list[str]:
    """Put names of modules into texts."""
    return [text.replace(MODULE, module) for text, module in events]


def folded(events: Sequence[Told]) -> list[str]:
    """Put names of modules into texts: those that differ by the index of a layer alone become equal.

    Example:
        >>> mm, add = f"mm in {MODULE}", f"add in {MODULE}"
        >>> folded([(mm, "layers.0"), (mm, "layers.1"), (add, "layers.1")])
        ['mm in layers.*', 'mm in layers.*', 'add in layers.1']
    """
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for text, module in events:
        modules[text].append(module)
    names = {text: fold_layers(of_text) for text, of_text in modules.items()}
    return [text.replace(MODULE, names[text][module]) for text, module in events]


def by_cause(steps: Sequence[Iterable[StepEvent]]) -> list[str]:
    """List what happened in each of some steps, a line for each cause, and one for all layers of a cause.

    Example:
        >>> by_cause([[], []])
        []
    """
    return _lines(steps, folded)


def by_layer(steps: Sequence[Iterable[StepEvent]]) -> list[str]:
    """List the same, where each layer has a line of its own."""
    return _lines(steps, named)


def _lines(steps: Sequence[Iterable[StepEvent]], write: Callable[[Sequence[Told]], list[str]]) -> list[str]:
    causes: defaultdict[Hashable, list[tuple[int, Told]]] = defaultdict(list)
    for number, of_step in enumerate(steps, 1):
        met: Counter[Hashable] = Counter()
        for one in of_step:
            # Two of the same origin in one step are two causes.
            causes[one.origin, met[one.origin]].append((number, told(one)))
            met[one.origin] += 1
    texts = write([(ranged([text for _, (text, _) in of]), of[0][1][1]) for of in causes.values()])
    lines: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for text, alike in zip(texts, causes.values(), strict=True):
        lines[text].update(number for number, _ in alike)
    return [f"{text}{_when(counts, len(steps))}" for text, counts in lines.items()]


def ranged(texts: Sequence[str]) -> str:
    """Write texts as one: where they differ in numbers alone each as a range, else the first and the last.

    Example:
        >>> ranged(["f32[8,9]R, was 8", "f32[8,10]R, was 9", "f32[8,11]R, was 10"])
        'f32[8,9-11]R, was 8-10'
    """
    low, high = extremes(texts)
    if NUMBER.sub("", low) != NUMBER.sub("", high):
        words = high.split(" ")
        pairs = zip(low.split(" "), words, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return f"{low} ... {' '.join(words[shared:])}"
    pairs = zip(NUMBER.findall(low), NUMBER.findall(high), strict=True)
    ranges = iter([least if least == most else f"{least}-{most}" for least, most in pairs])
    return NUMBER.sub(lambda _: next(ranges), low)


def extremes(texts: Sequence[str]) -> tuple[str, str]:
    """Return texts that differ in numbers alone with the least of each and with the greatest, else two ends.

    Example:
        >>> extremes(["9 of 2", "10 of 3", "8 of 4"])
        ('8 of 2', '10 of 4')
    """
    if len({NUMBER.sub("", text) for text in texts}) > 1:
        return texts[0], texts[-1]
    numbers = [sorted(each, key=_number) for each in zip(*map(NUMBER.findall, texts), strict=True)]
    least, most = iter([each[0] for each in numbers]), iter([each[-1] for each in numbers])
    return NUMBER.sub(lambda _: next(least), texts[0]), NUMBER.sub(lambda _: next(most), texts[0])


def _number(text: str) -> int:
    return int(text.replace(",", ""))


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
