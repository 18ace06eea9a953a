"""What may happen in a step: each is listed, with where in the program it happened."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from pytest_dtdispatch.core.places import CodePlace
from pytest_dtdispatch.core.spans import Interval


class Asked(str, Enum):
    """The cache that had no answer when an op propagated."""

    NATIVE = "native cache"
    PYTHON = "Python cache"
    NONE = "no cache"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Miss:
    """One call whose sharding was propagated.

    Args:
        signature: the call.
        reason: what in it was not seen before, or why no cache could answer.
        asked: the cache that was asked.
        nested: propagations of other ops inside this one, as an op without a rule of its own has them.
        cause: the reason without the values that may differ from step to step.
        call: how many calls its thread made before it in the step.
        elsewhere: whether it was made in another thread than the one that runs the step.
        place: where in the program it was made; None where that is not known.
        when: it ran; None where that is not known, as of another process.
    """

    signature: str
    reason: str
    asked: Asked
    nested: int = 0
    cause: str = field(default="", compare=False)
    call: int = field(default=0, compare=False)
    elsewhere: bool = False
    place: CodePlace | None = field(default=None, compare=False)
    when: Interval | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.signature}: {self.reason}{_at(self.place)}"

    @property
    def origin(self) -> Hashable:
        """What it has in common with misses of the same cause in other steps."""
        op = self.signature.partition("(")[0]
        return op, self.call, self.elsewhere, self.cause or self.reason, self.place


@dataclass(frozen=True)
class Redistribution:
    """One DTensor whose placements were changed, asked for or implied by an op.

    Args:
        op: the op that implied it, or ``redistribute`` where the program asked for it.
        tensor: dtype and global shape.
        source: placements before, one for each mesh dimension.
        target: placements after.
        bytes: what its collectives handled on this rank, by shape: for each the larger of what goes in and
            what comes out, as nccl-tests sizes them (its doc/PERFORMANCE.md); 0 where nothing is sent.
        place: where in the program it was made; None where that is not known.
        when: it ran; None where that is not known.
    """

    op: str
    tensor: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    bytes: int
    place: CodePlace | None = field(default=None, compare=False)
    when: Interval | None = field(default=None, compare=False)

    @property
    def mesh_dims(self) -> tuple[int, ...]:
        """Mesh dimensions on which the placement changes."""
        pairs = zip(self.source, self.target, strict=True)
        return tuple(i for i, (before, after) in enumerate(pairs) if before != after)

    def __str__(self) -> str:
        dims = f"dimension{'s' * (len(self.mesh_dims) > 1)} {', '.join(map(str, self.mesh_dims))}"
        return (
            f"{self.op}: {self.tensor} {change_text(self.source, self.target)} "
            f"on mesh {dims}, {self.bytes:,} bytes{_at(self.place)}"
        )

    @property
    def origin(self) -> Hashable:
        """What it has in common with others that may differ in size alone."""
        return self.op, self.source, self.target, self.place


@dataclass(frozen=True)
class Collective:
    """One collective that ran, whoever called it.

    Args:
        kind: by the name of torch's function: ``all_gather``.
        bytes: what it handled on this rank, by shape, as of a redistribution.
        place: where in the program it was called; None where that is not known.
        when: it ran; None where that is not known.
    """

    kind: str
    bytes: int = 0
    place: CodePlace | None = field(default=None, compare=False)
    when: Interval | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.bytes:,} bytes{_at(self.place)}"

    @property
    def origin(self) -> Hashable:
        """What it has in common with others that may differ in size alone."""
        return self.kind, self.place


@dataclass(frozen=True)
class Wrapping:
    """One DTensor that was made of a local tensor, or taken apart into it.

    Args:
        name: of the function: ``from_local``, ``distribute_tensor``, ``to_local``, or ``DTensor`` where it
            was constructed; in backward that of the forward function.
        tensor: dtype and global shape.
        placements: of the DTensor, one for each mesh dimension.
        place: where in the program it was made or taken apart; None where that is not known.
        when: it ran; None where that is not known.
    """

    name: str
    tensor: str
    placements: tuple[str, ...]
    place: CodePlace | None = field(default=None, compare=False)
    when: Interval | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.tensor} {' '.join(self.placements)}{_at(self.place)}"

    @property
    def origin(self) -> Hashable:
        """What it has in common with others that may differ in size alone."""
        return self.name, self.placements, self.place


def change_text(source: Iterable[str], target: Iterable[str]) -> str:
    """Write placements before and after a redistribution.

    Example:
        >>> change_text(["P", "S0"], ["R", "S0"])
        'P S0 -> R S0'
    """
    return f"{' '.join(source)} -> {' '.join(target)}"


def _at(place: CodePlace | None) -> str:
    return f", at {place}" if place else ""
