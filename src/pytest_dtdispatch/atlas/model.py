"""The atlas of ops: what one signature of an op gave, and where it was taken."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_dtdispatch.core.environment import Environment
from pytest_dtdispatch.core.measurement import Measurement, Samples, State, refused_of

# Few samples of many signatures: the whole takes minutes. Of each visit: misses, and hits after each of them.
ROUNDS, REPEAT = 2, 25
# A neighbour on the machine slows all samples of a visit: others minutes later show whether one did.
VISITS, MAX_VISITS = 2, 5
# How far the second lowest median of the visits may lie above the lowest.
AGREEMENT = 0.2


class Outcome(str, Enum):
    """What came of one signature."""

    MEASURED = "measured"
    NOT_REPEATED = "ran once, and is not measured"
    SPLIT = "torch takes the op apart before DTensor is asked"
    UNSUPPORTED = "torch does not support it"
    UNDEFINED = "raised after a fake collective that wrote nothing"
    NO_KERNEL = "torch has no kernel for this device"
    NO_ARGUMENTS = "no arguments made"

    __str__ = str.__str__


@dataclass(frozen=True)
class Counts:
    """What one miss of a signature does; a move is a redistribution that nobody asked for."""

    propagations: int  # and nested ones: an op without a rule of its own propagates those it is made of
    moves: tuple[str, ...] = ()  # in order: mat2 f32[8,8] S0 -> R
    collectives: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class AtlasRow:
    """One signature of an op; or the op, where no signature could be made.

    Args:
        op: the op overload.
        signature: the signature as text; the op where no arguments were made.
        mesh: mesh and device as text, ``2x4``; empty where no arguments were made.
        outcome: what came of it.
        message: why there are no figures, in torch's words where torch says so; empty where there are.
        visits: the figures, where it was measured: one for each time that the signature was visited.
        counts: what one miss does, where that was counted.
    """

    op: str
    signature: str
    mesh: str
    outcome: Outcome
    message: str = ""
    visits: tuple[Measurement, ...] = ()
    counts: Counts | None = None

    @functools.cached_property
    def measurement(self) -> Measurement | None:
        """The figures of the quietest visits, where it was measured."""
        return quietest(self.visits) if self.visits else None

    def spread(self, state: State) -> float | None:
        """Highest over lowest median of one state in the visits; None where fewer than two have it."""
        medians = self.medians(state)
        return medians[-1] / medians[0] if len(medians) > 1 and medians[0] else None

    @property
    def unconfirmed(self) -> tuple[State, ...]:
        """States of which no second visit found about what the quietest found."""
        by_state = {state: self.medians(state) for state in State}
        return tuple(
            state
            for state, medians in by_state.items()
            if medians and sum(median <= medians[0] * (1 + AGREEMENT) for median in medians) < 2
        )

    def medians(self, state: State) -> list[float]:
        """Median of one state in each visit that has it, the lowest first."""
        return sorted(median for visit in self.visits if (median := visit.median_ns(state)) is not None)

    @property
    def moves(self) -> tuple[str, ...]:
        """Redistributions that it implies."""
        return self.counts.moves if self.counts else ()

    @property
    def why_no_hit(self) -> str:
        """Why a measured signature has no hit; empty where it has one, or was not measured."""
        if not self.measurement or self.measurement.of(State.HIT):
            return ""
        if self.measurement.of(State.CALL):
            return "never asks the sharding propagator, so that it has no miss either"
        return "; ".join(self.measurement.notes) or self.measurement.proof


@dataclass(frozen=True)
class Atlas:
    """All rows of one run in the order of ops, and where they were taken."""

    rows: tuple[AtlasRow, ...]
    environment: Environment
    cpu: str
    cores: int  # that this process may use
    python: str
    date: str  # on which the run ended, 2026-11-21
    command: str  # as it was typed
    load: str = ""  # of the machine at the end, as text

    def of(self, *outcomes: Outcome) -> tuple[AtlasRow, ...]:
        """Rows of these outcomes."""
        return tuple(row for row in self.rows if row.outcome in outcomes)

    @property
    def ops(self) -> int:
        """How many ops have a row."""
        return count_ops(self.rows)


def count_ops(rows: Iterable[AtlasRow]) -> int:
    """Count the ops that rows are of."""
    return len({row.op for row in rows})


def quietest(visits: Sequence[Measurement]) -> Measurement:
    """Take each state from the visit in which its median is the lowest.

    What else runs on a machine only ever adds to a latency, for seconds at a time: to every sample of one
    visit then, and seldom to those of two (the argument of Chen and Revels, 2016,
    https://arxiv.org/abs/1608.04295, for low quantiles of a benchmark's times).
    """
    states = dict.fromkeys(samples.state for visit in visits for samples in visit.samples)
    figures = replace(visits[0].figures, samples=tuple(_quietest_of(state, visits) for state in states))
    return replace(visits[0], figures=figures)


def _quietest_of(state: State, visits: Sequence[Measurement]) -> Samples:
    tried = [samples for visit in visits for samples in visit.samples if samples.state is state]
    recorded = [samples for samples in tried if samples.ns]
    lowest = min(recorded, key=lambda samples: samples.median_ns) if recorded else tried[0]
    return replace(lowest, refused=refused_of(tried))
