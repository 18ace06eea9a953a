"""Entries of the table of twins: programs, the advised change, and the effect of the change on two ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

# A step returns everything that its user gets from it: results, gradients, parameters after an update.
Step: TypeAlias = Callable[[], object]
Program: TypeAlias = Callable[[DeviceMesh], Step]

LINE = (2,)  # the shape of a mesh with one dimension
WIDTH = 16


@dataclass(frozen=True)
class Entry:
    """An entry of the table.

    Args:
        rule: first column of the table in ``docs/advice.md``.
        name: name of the program, unique within the rule.
        shape: shape of the mesh.
        names: names of the mesh dimensions; may be empty.
        tolerance: absolute and relative tolerance of results; None for the tolerance of their dtype.
        is_quick: whether ``make test-long`` runs it.
        needs_times: whether the rule is based on times, so that a budget of the step is measured. On a busy
            machine such a rule may be silent.
    """

    rule: str
    name: str
    shape: tuple[int, ...] = field(default=LINE, kw_only=True)
    names: tuple[str, ...] = field(default=(), kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    is_quick: bool = field(default=False, kw_only=True)
    needs_times: bool = field(default=False, kw_only=True)

    @property
    def programs(self) -> dict[str, Program]:
        """Its programs by their role, ``before`` or ``after``."""
        raise NotImplementedError

    @property
    def ranks(self) -> int:
        """Number of ranks of the mesh."""
        return math.prod(self.shape)

    @property
    def id(self) -> str:
        """Unique name of the entry."""
        return f"{self.rule}: {self.name} ({type(self).__name__.lower()})"


@dataclass(frozen=True)
class Twin(Entry):
    """A program with a problem, and the same program with the advised change.

    Args:
        before: program with the problem.
        after: program with the advised change, with equal results.
        counted: name of the count that the change reduces.
        saves: number by which the count falls.
        promises: sum that the rule must promise; None if it is ``saves``.
        is_at_most: whether the count may fall by less than ``saves``.
        is_repair: whether the results of ``before`` are wrong, so that those of ``after`` differ.
    """

    before: Program
    after: Program
    counted: str
    saves: int
    is_at_most: bool = False
    is_repair: bool = False
    promises: int | None = None

    @property
    def promised(self) -> int:
        """Sum that the rule must promise."""
        return self.saves if self.promises is None else self.promises

    @property
    def programs(self) -> dict[str, Program]:
        """Both programs by their role."""
        return {"before": self.before, "after": self.after}


class Harm(Enum):
    """Effect of following a rule's advice where it does not apply."""

    OTHER_RESULTS = "other results"
    RAISES = "raises"
    SAVES_NOTHING = "saves nothing"
    NOT_RUN = "not run: it would end the process, or cannot be written"


@dataclass(frozen=True)
class Lookalike(Entry):
    """A program that resembles those of a rule, but in which its advice does harm.

    Args:
        program: the program.
        followed: the program with the advice followed; None if it is not run.
        harm: kind of harm.
        effect: the observed effect in one sentence.
        counted: name of the count that does not fall, for ``SAVES_NOTHING``.
        error: part of the error message, for ``RAISES``.
    """

    program: Program
    followed: Program | None
    harm: Harm
    effect: str
    counted: str = ""
    error: str = ""

    @property
    def programs(self) -> dict[str, Program]:
        """Its programs by their role."""
        return {"before": self.program} | ({"after": self.followed} if self.followed else {})


def sharded(mesh: DeviceMesh, *shape: int, dim: int = 0) -> Any:
    """Return a random matrix, sharded over the first mesh dimension."""
    rest = [Replicate()] * (mesh.ndim - 1)
    return distribute_tensor(torch.rand(*shape or (WIDTH, WIDTH)), mesh, [Shard(dim), *rest])


def replicated(mesh: DeviceMesh, *shape: int) -> Any:
    return distribute_tensor(torch.rand(*shape or (WIDTH, WIDTH)), mesh, [Replicate()] * mesh.ndim)


def partial_sum(mesh: DeviceMesh, *shape: int) -> Any:
    """Return a partial DTensor whose summands differ by rank."""
    summand = torch.rand(*shape or (WIDTH, WIDTH)) + mesh.get_local_rank(0)
    return DTensor.from_local(summand, mesh, [Partial()] + [Replicate()] * (mesh.ndim - 1))


def gathered(x: Any) -> Any:
    """Redistribute a DTensor to replicated placements."""
    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)


def parameter(tensor: torch.Tensor) -> Any:
    return torch.nn.Parameter(tensor)


def reduced_stack(numbers: Iterable[Any]) -> list[torch.Tensor]:
    """Stack numbers of DTensors, and reduce the stack."""
    stack: Any = torch.stack([*numbers])
    return [*stack.full_tensor()]
