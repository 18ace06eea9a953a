"""What the time of a step goes to, and which part an event of torch's profiler is. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from pytest_dtdispatch.core.events import Event

# Names of events of torch's profiler, and of ranges that we add.
ENGINE = "autograd::engine::evaluate_function"
OURS = "dtdispatch::"
STEP, PROPAGATION, PLANNING = f"{OURS}step", f"{OURS}propagation", f"{OURS}planning"
REDISTRIBUTION, WRAPPING, BACKWARD = f"{OURS}redistribution", f"{OURS}wrapping", f"{OURS}backward"
LOOK_UP = f"{OURS}look-up"
SUBCLASS, DISPATCH = "PythonSubclass", f"{OURS}dispatch"
DISPATCHES = (SUBCLASS, DISPATCH)  # in which a DTensor op is dispatched: by C++, or by an old torch's Python
COLLECTIVES = (
    "_c10d_functional::",
    "c10d::",
    "_c10d_functional_autograd::",
    "_dtensor::",
    "record_param_comms",
)
REDISTRIBUTING = ("Redistribute", "NestedRedistribute")  # functions of autograd's, and their backward ones
CONVERTING = {"_FromTorchTensor": "from_local", "_ToTorchTensor": "to_local"}


class Part(str, Enum):
    """What time goes to."""

    LOCAL = "local"
    DISPATCH = "dispatch"
    PROPAGATION = "propagation"
    PLANNING = "redistribution planning"
    COPIES = "redistribution copies"
    SENDING = "redistribution collectives"
    MOVING = "redistribution python"
    WRAPPING = "wrapping"
    AUTOGRAD = "autograd"
    COMMUNICATION = "other collectives"
    OTHER = "other"

    __str__ = str.__str__


WHOLE = (Part.LOCAL, Part.PROPAGATION, Part.PLANNING, Part.COPIES, Part.SENDING, Part.COMMUNICATION)
REDISTRIBUTED = (Part.MOVING, Part.WRAPPING)  # in which an op is no local op of the program


@dataclass
class Node:
    """An event with those that ran inside of it."""

    event: Event
    children: list[Node] = field(default_factory=list)
    dispatches: bool = False  # whether a DTensor op was dispatched in it

    def inner(self) -> Iterator[Node]:
        """Give every event inside."""
        for child in self.children:
            yield child
            yield from child.inner()


@dataclass(frozen=True)
class Within:
    """What an event runs in."""

    part: Part = Part.OTHER
    op: str = ""
    since_ns: int = -1
    running: int = -1
    made: int = -1
    in_engine: bool = False


def placed(node: Node, within: Within) -> Within:
    """Say what an event runs in, itself included."""
    name, sequence = node.event.name, node.event.sequence
    part, op = _owner(node, within)
    if name.startswith(ENGINE):
        return Within(part, op, running=sequence, in_engine=True)
    since_ns = -1
    if part not in (Part.OTHER, Part.AUTOGRAD):
        since_ns = within.since_ns if within.since_ns >= 0 else node.event.begin_ns
    made = sequence if sequence >= 0 else within.made
    return Within(part, op, since_ns, within.running, made, within.in_engine or name == BACKWARD)


Owner = tuple[Part, str]  # and the op that it belongs to


def _owner(node: Node, within: Within) -> Owner:
    """Say which part an event is, and which op it belongs to: by the first rule that knows it."""
    for rule in (_range, _conversion, _collective, _inside, _op, _autograd):
        if (owner := rule(node, within)) is not None:
            return owner
    return within.part, within.op


def _range(node: Node, within: Within) -> Owner | None:
    """A range of ours, or one that a program named."""
    kind, _, label = node.event.name.partition(" ")
    match kind:
        case _ if not (node.event.is_range or kind.startswith(OURS)):
            return None
        case "dtdispatch::propagation":
            return Part.PROPAGATION, within.op
        case "dtdispatch::planning":
            return Part.PLANNING, within.op
        case "dtdispatch::redistribution":
            return Part.MOVING, within.op if within.part is Part.DISPATCH else label
        case "dtdispatch::wrapping":
            return (within.part, within.op) if within.part in REDISTRIBUTED else (Part.WRAPPING, label)
        case "dtdispatch::dispatch":
            return None  # it is what the event of C++ is, for which a later rule stands
        case "dtdispatch::backward":
            return Part.AUTOGRAD, "autograd engine"
        case _ if kind.startswith(OURS):
            return within.part, within.op
    return within.part, node.event.name if within.part is Part.OTHER else within.op


def _conversion(node: Node, within: Within) -> Owner | None:
    """A function of autograd's that wraps, unwraps or redistributes, or its backward one."""
    base = node.event.name.removesuffix("Backward")
    if base in REDISTRIBUTING:
        return Part.MOVING, within.op if within.part in REDISTRIBUTED else _redistribution_in(node)
    if base in CONVERTING:
        inside = within.part in REDISTRIBUTED
        return (within.part, within.op) if inside else (Part.WRAPPING, CONVERTING[base])
    return None


def _collective(node: Node, within: Within) -> Owner | None:
    """A collective: of a redistribution, or of the program's own."""
    if not node.event.name.startswith(COLLECTIVES):
        return None
    moves = within.part in (*REDISTRIBUTED, Part.DISPATCH)
    return Part.SENDING if moves else Part.COMMUNICATION, within.op or short(node.event.name)


def _inside(node: Node, within: Within) -> Owner | None:
    """What runs inside of a conversion, or inside of a DTensor op that is dispatched."""
    if within.part in REDISTRIBUTED:
        copies = within.part is Part.MOVING and "::" in node.event.name
        return Part.COPIES if copies else within.part, within.op
    if node.event.name in DISPATCHES:
        return Part.DISPATCH, within.op
    if within.part is Part.DISPATCH:
        return Part.DISPATCH if node.dispatches else Part.LOCAL, within.op
    return None


def _op(node: Node, within: Within) -> Owner | None:
    """An op that the program called, or autograd: on DTensors its own time is that of recording it."""
    name = node.event.name
    if "::" not in name or name.startswith((ENGINE, "torch::autograd")):
        return None
    return Part.AUTOGRAD if node.dispatches else Part.LOCAL, short(name)


def _autograd(node: Node, within: Within) -> Owner | None:
    """A node of the graph that runs."""
    name = node.event.name.removeprefix(f"{ENGINE}: ")
    is_node = name != node.event.name or name.startswith("torch::autograd") or "Backward" in name
    return (Part.AUTOGRAD, short(name)) if is_node else None


def _redistribution_in(node: Node) -> str:
    """Name what a function of autograd's redistributes, by the range inside of it."""
    names = (inner.event.name for inner in node.inner())
    labels = (name.removeprefix(REDISTRIBUTION).strip() for name in names if name.startswith(REDISTRIBUTION))
    return next(labels, "redistribute")


def short(name: str) -> str:
    """Shorten the name of an op or of a node as torch's users know it.

    Example:
        >>> short("aten::mm"), short("torch::autograd::AccumulateGrad")
        ('mm', 'AccumulateGrad')
    """
    return name.rpartition("::")[2] if name.startswith(("aten::", "torch::autograd::")) else name
