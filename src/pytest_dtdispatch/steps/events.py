"""Events of a step with their source lines, and lists of events with one line for each cause."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, TypeAlias

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.text import TextEnum, fold_layers, grouped, shorten_path

EXPLICIT = "redistribute"  # the op of explicit redistributions


class QueriedCache(TextEnum):
    """Cache that missed when an op propagated."""

    NATIVE = "native cache"
    PYTHON = "Python cache"
    NONE = "no cache"


class Remedy(TextEnum):
    """Remedy of a miss; empty if none is certain."""

    NONE = ""
    NUMBER = "give the number as a 0-dim tensor: its value is not part of the key"
    SHAPE = "pad to a few sizes: each new shape propagates once"
    LENGTH = "give lists of one length"
    UNCACHED = "torch does not cache this op: run it on local tensors"
    CLEARED = "do not clear the caches in the step"
    THREAD = "use one thread for all steps: a new thread starts with empty caches"


PROOF = {"is_proof": True}  # metadata of fields that only rules of advice read


@dataclass(frozen=True)
class StepEvent:
    """An event of a step.

    The attributes after the first are known only in a step whose ops were all recorded.

    Args:
        place: its source line; None if unknown.
        via: function of torch that the user's line called, if its code caused the event; empty if that line
            did, by itself, a module or a thin wrapper.
        depth: length of the longest chain of transfers, and of reads whose values were used, that its tensors
            depend on: events of equal depth do not depend on each other.
        after: number of backward passes of the step that had ended.
        input: number of the argument of the running module that a plan of ``parallelize_module`` converts for
            a module inside it, unique for each call; 0 if it converts none.
        options: arguments of its conversion other than tensors, as text.
        is_result_unique: whether no equal result can take the place of its result: the program writes to it,
            observes its gradient, or holds it after the step.
        node: number of the node of autograd that its conversion creates, or whose backward contains it; None
            without one.
    """

    prefix: ClassVar[str]  # of its line in a list of all kinds of events
    plural: ClassVar[str]
    common: ClassVar[tuple[str, ...]]  # attributes that are equal in events of the same cause
    place: CodePlace | None = field(default=None, compare=False, kw_only=True)
    via: str = field(default="", compare=False, kw_only=True, metadata=PROOF)
    depth: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    after: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    options: str = field(default="", compare=False, kw_only=True, metadata=PROOF)
    is_result_unique: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    input: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    node: int | None = field(default=None, compare=False, kw_only=True, metadata=PROOF)

    @property
    def origin(self) -> Hashable:
        """Key that events of the same cause have in common."""
        return *(getattr(self, name) for name in self.common), self.place

    @property
    def phase(self) -> Phase | None:
        """Phase. ``Phase.OTHER``, as of a forward after a backward, is reported as forward."""
        phase = self.place.phase if self.place else None
        return Phase.FORWARD if phase is Phase.OTHER else phase

    def _with_line(self, text: str) -> str:
        return f"{text}, at {self.place}" if self.place else text


@dataclass(frozen=True)
class Miss(StepEvent):
    """A call whose sharding was propagated.

    Args:
        signature: signature of the call.
        reason: difference from earlier calls, or why no cache could have an entry.
        queried: queried cache.
        cause: reason without values that may differ from step to step.
        call: number of earlier calls of its thread in the step.
        elsewhere: whether it ran in a thread other than that of the step.
        remedy: remedy that avoids it.
        values: first differing value, now and before.
        is_direct: whether user code called the op, not torch's Python code or autograd.
        mesh: sizes of the dimensions of its mesh.
        place: its source line; None if unknown.
    """

    prefix, plural = "missed ", "misses"
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
    mesh: tuple[int, ...] = field(default=(), compare=False, kw_only=True, metadata=PROOF)

    @property
    def op(self) -> str:
        """Name of the op."""
        return self.signature.partition("(")[0]

    def __str__(self) -> str:
        return self._with_line(f"{self.signature}: {self.reason}")


@dataclass(frozen=True)
class Redistribution(StepEvent):
    """A redistribution of a DTensor, explicit or implied by an op.

    Args:
        op: op that implied it, or ``redistribute`` if it is explicit.
        tensor: dtype and global shape.
        source: placements before, one for each mesh dimension.
        target: placements after, one for each mesh dimension.
        bytes: bytes of its collectives on this rank: for each, the larger of input and output by shape, as in
            nccl-tests (doc/PERFORMANCE.md); 0 if nothing is sent.
        tensor_number: number of the tensor, equal if nothing was written to it in between; 0 if unknown.
        result_number: number of the result, likewise.
        operands: number of tensor arguments of the op that implied it; 0 if it is explicit.
        memory_number: number of the memory, equal whatever was written to it; 0 if it is implied or unknown.
        matrices: number of sharded matrices of the optimizer whose step implied it; 0 outside of optimizers.
        is_for_loss: whether a cross entropy that ``loss_parallel`` supports takes its result as logits, or
            implied it.
        mesh: number of the mesh; 0 if unknown.
        is_even: whether the shards of all ranks have one size.
        mergeable: number of its collectives that a flattened mesh would save.
        is_gradient: whether the tensor is the gradient of a parameter of the running optimizer.
        is_parameter: whether it is a parameter.
        is_lasting: whether the tensor was not created in the step.
        uses: number of ops that use the tensor in the step.
        forward_uses: number of these outside of backward.
        own_writes: number of writes to the tensor in the step outside of optimizers.
        is_written_later: whether something writes to the tensor after it.
        result_uses: number of ops that use the result.
        output_uses: number of ops that use the result of the op that implied it.
        other_uses: number of ops in forward, other than elementwise ones, that use the result, or what
            elementwise ops make of it.
        free_dims: dimensions of the tensor that the op could find sharded without a redistribution.
        undoes: positions, among all redistributions of the step, of those that this one undoes after only
            elementwise ops.
        place: its source line; None if unknown.
    """

    prefix, plural = "", "redistributions"  # its text begins with the op, or ``redistribute``
    common = ("op", "source", "target")
    op: str
    tensor: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    bytes: int
    tensor_number: int = field(default=0, compare=False)
    result_number: int = field(default=0, compare=False)
    operands: int = field(default=0, compare=False)
    memory_number: int = field(default=0, compare=False)
    matrices: int = field(default=0, compare=False)
    is_for_loss: bool = field(default=False, compare=False)
    mesh: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    is_even: bool = field(default=True, compare=False, kw_only=True, metadata=PROOF)
    mergeable: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    is_gradient: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    is_parameter: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    is_lasting: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    forward_uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    own_writes: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    is_written_later: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    result_uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    output_uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    other_uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    free_dims: tuple[int, ...] = field(default=(), compare=False, kw_only=True, metadata=PROOF)
    undoes: tuple[int, ...] = field(default=(), compare=False, kw_only=True, metadata=PROOF)

    @property
    def is_implied(self) -> bool:
        """Whether an op implied it."""
        return self.op != EXPLICIT

    def __str__(self) -> str:
        change = placement_change(self.source, self.target)
        return self._with_line(f"{self.op}: {self.tensor} {change}, {self.bytes:,} bytes")


@dataclass(frozen=True)
class Collective(StepEvent):
    """A collective, regardless of its caller.

    Args:
        kind: name of torch's function, such as ``all_gather``.
        bytes: bytes on this rank, as in a redistribution; not compared by ``==``.
        elsewhere: text with the collective on a mesh of another device; empty if it is the same.
        is_redistributing: whether it is part of a redistribution.
        fsdp_group: number of the group of parameters that FSDP2 gathers or reduces; 0 if it is not FSDP2's.
        dtype: dtypes of its tensors, such as ``f32``; joined by ``+`` if they differ; empty for a barrier.
        mesh_dim: name of the mesh dimension of its process group, or its number in a mesh without names;
            joined by ``/`` if several meshes share the group; empty if no mesh has it.
        group: ranks of its process group, such as ``0-3`` or ``0,4``.
        reduction: reduction of a collective that reduces, such as ``sum``; empty if unknown.
        contents: number of the values of the parameters that FSDP2 moves, equal if none was written to.
        accumulates: whether FSDP2 adds the result to the gradients of its last reduction in this step, of the
            same parameters and settings, which nothing has used since.
        uses: number of ops and transfers outside of FSDP that took parameters of the group before.
        shape: shape of its first tensor, as text.
        place: its source line; None if unknown.
    """

    prefix, plural = "ran ", "collectives"
    common = ("kind", "dtype", "mesh_dim", "group")
    kind: str
    bytes: int = field(default=0, compare=False)
    elsewhere: str = field(default="", compare=False)
    is_redistributing: bool = field(default=False, compare=False)
    fsdp_group: int = field(default=0, compare=False)
    dtype: str = ""
    mesh_dim: str = ""
    group: str = field(default="", compare=False)
    reduction: str = field(default="", compare=False, kw_only=True, metadata=PROOF)
    contents: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    accumulates: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    shape: str = field(default="", compare=False, kw_only=True, metadata=PROOF)

    @property
    def mesh_dims(self) -> tuple[str, ...]:
        """Names of the mesh dimensions of its process group."""
        return tuple(filter(None, self.mesh_dim.split("/")))

    def __str__(self) -> str:
        elsewhere = f" ({self.elsewhere})" if self.elsewhere else ""
        dtype = f" {self.dtype}" if self.dtype else ""
        over = f"ranks {self.group}" if self.group else ""
        if self.mesh_dim:
            over = f"dim {self.mesh_dim}" if self.mesh_dim.isdecimal() else self.mesh_dim
        over = f" over {over}" if over else ""
        return self._with_line(f"{self.kind}: {self.bytes:,} bytes{dtype}{over}{elsewhere}")


@dataclass(frozen=True)
class Wrapping(StepEvent):
    """A conversion of a local tensor to a DTensor.

    Args:
        name: name of the function: ``from_local``, ``distribute_tensor``, ``to_local``, or ``DTensor`` for
            its constructor; in backward that of the forward function.
        tensor: dtype and global shape.
        placements: placements of the DTensor, one for each mesh dimension.
        tensor_number: number of the local or full tensor, equal if nothing was written to it in between; 0 in
            backward, or if unknown.
        is_parameter: whether the tensor is a parameter.
        plain_uses: number of ops, reads and collectives in the step that take the memory, or that of the
            gradient of a parameter, as a plain tensor; of optimizers only those that take it in a list.
        own_conversions: number of conversions of the memory that no plan makes.
        mesh: number of the mesh; 0 if unknown.
        place: its source line; None if unknown.
    """

    prefix, plural = "wrapped ", "wraps"
    common = ("name", "placements")
    name: str
    tensor: str
    placements: tuple[str, ...]
    tensor_number: int = field(default=0, compare=False)
    is_parameter: bool = field(default=False, compare=False)
    plain_uses: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    own_conversions: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)
    mesh: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)

    def __str__(self) -> str:
        return self._with_line(f"{self.name}: {self.tensor} {' '.join(self.placements)}")


@dataclass(frozen=True)
class Unwrapping(Wrapping):
    """A conversion of a DTensor to its local tensor."""

    prefix, plural = "unwrapped ", "unwraps"


@dataclass(frozen=True)
class Read(StepEvent):
    """A read of values of a tensor by the host, which waits for a device.

    Args:
        op: name of the reading function, such as ``item``, which ``bool`` and ``float`` also call.
        tensor: dtype and shape; for a DTensor, the global shape.
        placements: placements of a DTensor, one for each mesh dimension; empty for other tensors.
        is_partial: whether a placement is partial, so that the value is this rank's share.
        is_compared: whether the program may decide by the value which code runs next.
        is_written_later: whether something writes to the tensor after the read.
        mesh: number of the mesh of a DTensor; 0 if unknown.
        place: its source line; None if unknown.
    """

    prefix, plural = "read ", "reads"
    common = ("op", "placements")
    op: str
    tensor: str
    placements: tuple[str, ...] = ()
    is_partial: bool = False
    is_compared: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    is_written_later: bool = field(default=False, compare=False, kw_only=True, metadata=PROOF)
    mesh: int = field(default=0, compare=False, kw_only=True, metadata=PROOF)

    def __str__(self) -> str:
        tensor = " ".join((self.tensor, *self.placements))
        share = ", partial: this rank's share" if self.is_partial else ""
        return self._with_line(f"{self.op} of {tensor}{share}")


@dataclass(frozen=True)
class OpCalls(StepEvent):
    """Calls of one op on DTensors at one line, in a step whose ops were all recorded. They are not counted.

    Args:
        op: name of the op.
        count: number of calls.
        tensors: number of distinct first arguments.
        is_alike: whether dtype, mesh and placements of all tensors are equal.
        is_independent: whether no call depends on what another wrote, or on a transfer that others do not.
        is_pointwise: whether each element of the result depends on one element of each argument.
        replacement: function whose one call can replace all calls; empty if there is none.
    """

    prefix, plural = "", "calls"
    common = ("op",)
    op: str
    count: int
    tensors: int
    is_alike: bool
    is_independent: bool
    is_pointwise: bool
    replacement: str = ""


AnyEvent: TypeAlias = Miss | Redistribution | Collective | Wrapping | Unwrapping | Read


def placement_change(source: Iterable[str], target: Iterable[str]) -> str:
    """Format the placements before and after a redistribution.

    Example:
        >>> placement_change(["P", "S0"], ["R", "S0"])
        'P S0 -> R S0'
    """
    return f"{' '.join(source)} -> {' '.join(target)}"


# A number that is not negative, and not part of a name, such as f32, S0 or dp7.
NUMBER = re.compile(r"(?<![\w.#-])(?:\d{1,3}(?:,\d{3})+(?= bytes)|\d+)(?![\w.])")


MODULE = "\0"  # placeholder of the module's name


class EventText(NamedTuple):
    """The text of an event with a placeholder for its module, and the module."""

    text: str
    module: str


def event_text(one: StepEvent) -> EventText:
    """Format an event with a placeholder for its module."""
    if one.place is None or not one.place.module:
        return EventText(str(one), "")
    text = str(replace(one, place=replace(one.place, module=MODULE)))
    return EventText(text, one.place.module)


def insert_folded_modules(events: Sequence[EventText]) -> list[str]:
    """Insert the modules into texts; names that differ only in the layer index become equal.

    Example:
        >>> mm, add = f"mm in {MODULE}", f"add in {MODULE}"
        >>> texts = EventText(mm, "layers.0"), EventText(mm, "layers.1"), EventText(add, "layers.1")
        >>> insert_folded_modules(texts)
        ['mm in layers.*', 'mm in layers.*', 'add in layers.1']
    """
    names = {text: fold_layers(modules) for text, modules in grouped(events).items()}
    return [text.replace(MODULE, names[text][module]) for text, module in events]


def with_short_path(event: StepEvent) -> StepEvent:
    """Return an event with the path of its line as in tables."""
    if event.place is None:
        return event
    file, _, _ = shorten_path(event.place.line_text).rpartition(":")
    return replace(event, place=replace(event.place, file=file))


def by_cause(steps: Sequence[Iterable[StepEvent]], each_layer: bool = False) -> list[str]:
    """Format the events of steps, with one line for each cause over all layers, or for each cause and layer.

    The causes that send most bytes come first, others in order.

    Example:
        >>> by_cause([[], []])
        []
    """
    causes: defaultdict[Hashable, list[tuple[int, StepEvent]]] = defaultdict(list)
    for number, of_step in enumerate(steps, 1):
        earlier: Counter[Hashable] = Counter()
        for one in of_step:
            # Two events of the same origin in one step are two causes.
            causes[one.origin, earlier[one.origin]].append((number, one))
            earlier[one.origin] += 1
    merged = []
    for same in causes.values():
        of_cause = [event_text(one) for _, one in same]
        merged.append(EventText(merge_texts([each.text for each in of_cause]), of_cause[0].module))
    if each_layer:
        texts = [text.replace(MODULE, module) for text, module in merged]
    else:
        texts = insert_folded_modules(merged)
    lines: defaultdict[str, Counter[int]] = defaultdict(Counter)
    nbytes = Counter[str]()
    for text, same in zip(texts, causes.values(), strict=True):
        lines[text].update(number for number, _ in same)
        nbytes[text] += sum(getattr(one, "bytes", 0) for _, one in same)
    most_first = sorted(lines, key=lambda text: -nbytes[text])
    return [f"{text}{_when(lines[text], len(steps))}" for text in most_first]


def merge_texts(texts: Sequence[str]) -> str:
    """Merge texts: if they differ only in numbers, into ranges, or else into the first and the last text.

    Example:
        >>> merge_texts(["f32[8,9]R, was 8", "f32[8,10]R, was 9", "f32[8,11]R, was 10"])
        'f32[8,9-11]R, was 8-10'
    """
    low, high = extremes(texts)
    if NUMBER.sub("", low) != NUMBER.sub("", high):
        words, others = low.split(" "), high.split(" ")
        shared = os.path.commonprefix([words, others])  # noqa: RUF071 (of words, not of folders)
        return f"{low} ... {' '.join(others[len(shared) :])}"
    pairs = zip(NUMBER.findall(low), NUMBER.findall(high), strict=True)
    return _with_numbers(low, [least if least == most else f"{least}-{most}" for least, most in pairs])


def _with_numbers(text: str, numbers: Sequence[str]) -> str:
    """Replace the numbers in a text."""
    pieces = zip(NUMBER.split(text), [*numbers, ""], strict=True)
    return "".join(f"{piece}{number}" for piece, number in pieces)


def extremes(texts: Sequence[str]) -> tuple[str, str]:
    """Return the text with all minima and the one with all maxima; the first and the last if words differ.

    Example:
        >>> extremes(["9 of 2", "10 of 3", "8 of 4"])
        ('8 of 2', '10 of 4')
    """
    if len({NUMBER.sub("", text) for text in texts}) > 1:
        return texts[0], texts[-1]
    columns = zip(*map(NUMBER.findall, texts), strict=True)
    numbers = [sorted(each, key=lambda number: int(number.replace(",", ""))) for each in columns]
    minima, maxima = [each[0] for each in numbers], [each[-1] for each in numbers]
    return _with_numbers(texts[0], minima), _with_numbers(texts[0], maxima)


def _when(counts: Counter[int], steps: int) -> str:
    """Format the number of occurrences of an event, and the steps that it occurs in: ``1-3, 5``."""
    often = sorted(set(counts.values()))
    if steps == 1:
        return f" ({often[0]}x)" if often[0] > 1 else ""
    times = {1: "once", 2: "twice"}.get(often[0], f"{often[0]} times")
    if len(often) > 1:
        times = f"{often[0]} to {often[-1]} times"
    runs: list[list[int]] = []  # of consecutive numbers
    for number in sorted(counts):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    numbers = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f" ({times} in {'step' if len(counts) == 1 else 'each of steps'} {numbers})"
