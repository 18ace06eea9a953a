"""Reasons of misses: differences of cache-relevant properties from those of earlier calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.signatures import mesh_text, shorten
from pytest_dtdispatch.steps.events import Remedy
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.signatures import dtype_text, placements_text, shape_text
from pytest_dtdispatch.torchapi.tensors import stride_of, tensor_traits

MAX_AT_POSITION = 32  # stored calls at one position in the step, for endless loops


class CallPosition(NamedTuple):
    """Position of a call in a step.

    Args:
        thread: number of the thread, 0 for that of the step; caches are per thread.
        call: number of earlier calls of the thread in this step.
        clears: number of earlier clears of the thread's caches.
    """

    thread: int = 0
    call: int = 0
    clears: int = 0


class Trait(NamedTuple):
    """A property that may distinguish two calls of an op in a cache.

    Args:
        of: argument, such as ``self`` or ``tensors[3]``, or ``mesh``.
        kind: kind of property: ``shape``, ``placements``, ...; every argument has a ``type``.
    """

    of: str
    kind: str


# The cache-relevant properties of a call, as texts.
Traits = Mapping[Trait, str]
_Call = tuple[tuple[Trait, str], ...]
T = TypeVar("T")


class Called(NamedTuple):
    """A call and its position, whether it propagated or not."""

    op: str
    traits: Traits
    at: CallPosition = CallPosition()
    text: tuple[str, str] = ("", "")  # signature and source line, if calls are listed


class Reason(NamedTuple):
    """Reason of a miss.

    Args:
        text: reason as text.
        without_values: reason without values that may differ from step to step.
        remedy: remedy that avoids the miss.
        arguments: arguments of the first difference.
        values: their value, now and before.
    """

    text: str
    without_values: str = ""
    remedy: Remedy = Remedy.NONE
    arguments: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def describe(call: OpCall, at: CallPosition) -> Called:
    """Return the traits of a call on DTensors, or on their specs in propagation."""
    mesh = call.mesh
    traits = {**_mesh_traits(mesh)}
    for argument, value in call.named():
        _add(traits, argument.name, value, mesh)
    return Called(op_name(call.func), traits, at)


def _add(traits: dict[Trait, str], of: str, value: Any, mesh: Any) -> None:
    tensor = tensor_traits(value)
    if tensor is not None:
        traits[Trait(of, "type")] = "tensor"
        traits[Trait(of, "dtype")] = dtype_text(tensor.dtype)
        traits[Trait(of, "shape")] = shape_text(tensor.shape)
        # Torch treats plain tensors as replicated.
        traits[Trait(of, "placements")] = placements_text(tensor.placements) or "R" * mesh.ndim
        traits[Trait(of, "stride")] = shape_text(stride_of(value))
    elif isinstance(value, (list, tuple)):
        traits[Trait(of, "type")] = "list"
        traits[Trait(of, "length")] = str(len(value))
        for i, item in enumerate(value):
            _add(traits, f"{of}[{i}]", item, mesh)
    else:
        traits[Trait(of, "type")] = type(value).__name__
        traits[Trait(of, "value")] = str(value)


@lru_cache(maxsize=64)  # a mesh may have many ranks
def _mesh_traits(mesh: Any) -> dict[Trait, str]:
    ranks = ",".join(map(str, mesh.mesh.flatten().tolist()))
    return {
        Trait("mesh", "shape"): mesh_text(tuple(mesh.shape)),
        Trait("mesh", "device"): str(mesh.device_type),
        Trait("mesh", "dim_names"): str(mesh.mesh_dim_names),
        Trait("mesh", "ranks"): shorten(ranks, limit=20),
        Trait("mesh", "identity"): str(hash(mesh)),  # equal for meshes that torch compares as equal
    }


class Seen:
    """Earlier calls of each thread by op, and by position in the step."""

    def __init__(self) -> None:
        # By call, the number of clears of the thread's caches before its last run.
        self._clears: defaultdict[tuple[int, str], dict[_Call, int]] = defaultdict(dict)
        self._at_position: defaultdict[tuple[int, str, int], dict[_Call, None]] = defaultdict(dict)

    def note(self, called: Called) -> None:
        """Record a call."""
        call, at = tuple(called.traits.items()), called.at
        _put_last(self._clears[at.thread, called.op], call, at.clears, 4096)  # of an op in a thread
        _put_last(self._at_position[at.thread, called.op, at.call], call, None, MAX_AT_POSITION)

    def why(self, called: Called) -> Reason:
        """Return the reason of a miss; call it before recording the call."""
        op, traits, at, _ = called
        earlier = self._clears.get((at.thread, op))
        if not earlier and not at.thread and all(other != op for _, other in self._clears):
            return Reason("first call of this op")
        if not earlier:
            return Reason("first call of this op in this thread; caches are per thread", remedy=Remedy.THREAD)
        call = tuple(traits.items())
        before = earlier.get(call)
        ran_elsewhere = any(call in calls for (_, other), calls in self._clears.items() if other == op)
        if before is None and not at.clears and ran_elsewhere:
            return Reason("an equal call ran in another thread; caches are per thread", remedy=Remedy.THREAD)
        if before is not None and before < at.clears:
            return Reason("the caches were cleared since its last call", remedy=Remedy.CLEARED)
        if before is not None:
            return Reason("an equal call missed before: its plan is not cached", remedy=Remedy.UNCACHED)
        same_position = self._at_position.get((at.thread, op, at.call))
        # Of equally similar calls, report the latest.
        latest_first = islice(reversed(same_position or earlier), MAX_AT_POSITION)
        differences = (_differences(traits, dict(other)) for other in latest_first)
        kinds, strong, weak = min(differences, key=lambda each: tuple(map(len, each)))
        changes = [*kinds, *strong] or weak or [Reason("")]
        text = _joined([change.text for change in changes], ", ")
        cause = _joined([change.without_values for change in changes], ", ")
        if not same_position:
            return Reason(f"{text} at another position", cause)
        return changes[0]._replace(text=text, without_values=cause)


def _put_last(calls: dict[_Call, T], call: _Call, value: T, limit: int) -> None:
    """Store a call as the latest; remove the oldest if there are more than ``limit``."""
    calls.pop(call, None)
    calls[call] = value
    if len(calls) > limit:
        del calls[next(iter(calls))]


def _differences(traits: Traits, other: Traits) -> tuple[list[Reason], list[Reason], list[Reason]]:
    """Return differences of two calls: added or removed arguments, strong ones, and weak ones.

    Equal differences of several arguments are merged.
    """
    # A difference in the length of a list covers its items.
    new, old = (
        [trait.of for trait in each if trait.kind == "type" and "[" not in trait.of]
        for each in (traits, other)
    )
    texts = [f"{of} is passed, but was not before" for of in new if of not in old]
    texts += [f"{of} is not passed, but was before" for of in old if of not in new]
    strong: list[Reason] = []
    weak: list[Reason] = []
    changed: dict[tuple[str, str, str], list[str]] = {}
    for trait, value in traits.items():
        if trait in other and other[trait] != value:
            changed.setdefault((trait.kind, value, other[trait]), []).append(trait.of)
    for (kind, value, before), of in changed.items():
        if kind == "identity":  # a slice of a mesh, and a mesh of these ranks
            text = "another mesh of equal ranks, which torch does not compare as equal"
            weak.append(Reason(text, text))
            continue
        values = f"{value}, {'were' if kind.endswith('s') else 'was'} {before}"
        subject = f"another mesh: {kind}" if of == ["mesh"] else f"{kind} of {_joined(of, ' and ')}"
        remedies = {"shape": Remedy.SHAPE, "length": Remedy.LENGTH, "value": Remedy.NUMBER}
        remedy = Remedy.NONE if of == ["mesh"] else remedies.get(kind, Remedy.NONE)
        text = f"{subject} {values}"
        # Lists of ranks are names: they are never merged into ranges.
        cause = text if kind == "ranks" else subject
        reason = Reason(text, cause, remedy, tuple(of), (value, before))
        # These are implied by other traits, or not part of some cache keys.
        (weak if kind in ("stride", "value") else strong).append(reason)
    return [Reason(text, text) for text in texts], strong, weak


def _joined(texts: Sequence[str], joint: str) -> str:
    if len(texts) > 3:
        return f"{', '.join(texts[:3])} and {len(texts) - 3} more"
    return joint.join(texts)
