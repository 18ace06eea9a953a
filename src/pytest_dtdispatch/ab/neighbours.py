"""Neighbours compared: of two sides the head with the base, of several each with the one before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pytest_dtdispatch.ab.judge import Sides, Stage, Values, compare_sides, judge, screen_and_confirm
from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, Pair, ProcessSample, Request, in_turns
from pytest_dtdispatch.ab.number_rules import NumberStage, compare_numbers, screen_numbers
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.worker import Workplace, run_processes
from pytest_dtdispatch.core.verdicts import RowVerdict


@dataclass(frozen=True)
class Neighbours:
    """What a comparison of times found of two neighbours: by stages, and row by row."""

    stages: Mapping[str, Stage]
    verdicts: Sequence[RowVerdict]

    @property
    def has_compared(self) -> bool:
        """Whether any row is on both sides."""
        return bool(self.stages[SCREEN].comparisons)


@dataclass(frozen=True)
class NumberNeighbours:
    """What a comparison of counts or of instructions found of two neighbours."""

    stage: NumberStage
    verdicts: Sequence[RowVerdict]

    @property
    def has_compared(self) -> bool:
        """Whether any number is on both sides."""
        return bool(self.stage.pairs)


@dataclass(frozen=True)
class FreshRounds:
    """Rounds of some sides, and fresh ones of those that a screen suspects.

    Args:
        sides: each is compared with the one before it.
        place: where they run.
        recorder: keeps what they gave.
        values: those of a process that are compared.
        rule: compares two sides as they were asked for, and says whether that is suspect.
    """

    sides: tuple[str, ...]
    place: Workplace
    recorder: Recorder
    values: Callable[[ProcessSample], Values]
    rule: Callable[[Sequence[Values], Sequence[Values], Request], Stage | NumberStage]

    def pairs(self) -> list[Pair]:
        """Name every two neighbours."""
        return list(pairwise(self.sides))

    def taken(self, pair: Pair, *stages: str) -> Sides:
        """Give the values of two sides in some stages, and run first what is missing of these."""
        screen = in_turns(self.sides, self.recorder.run.asked.pairs)
        run_processes(self.place, self.recorder, SCREEN, screen)
        if CONFIRM in stages:
            run_processes(self.place, self.recorder, CONFIRM, self._fresh())
        return self._of(pair, stages)

    def _fresh(self) -> Sequence[Sequence[str]]:
        """Give rounds of the sides that stand in any pair that is suspect."""
        asked = self.recorder.run.asked
        screens = {pair: self.rule(*self._of(pair, (SCREEN,)), asked) for pair in self.pairs()}
        suspects = {side for pair, screen in screens.items() if screen.is_suspect for side in pair}
        return in_turns(tuple(side for side in self.sides if side in suspects), asked.confirm)

    def _of(self, pair: Pair, stages: Sequence[str]) -> Sides:
        processes = [process for process in self.recorder.run.processes if process.stage in stages]
        base, head = ([self.values(p) for p in processes if p.side == side] for side in pair)
        return base, head


def compare(place: Workplace, recorder: Recorder) -> dict[Pair, Neighbours]:
    """Run what is missing of a comparison of times, and judge."""
    asked = recorder.run.asked
    among = tuple(asked.interpreters)
    rounds = FreshRounds(among, place, recorder, lambda process: process.quietest_ns, compare_sides)
    stages = {pair: screen_and_confirm(asked, partial(rounds.taken, pair)) for pair in rounds.pairs()}
    found = {pair: Neighbours(of_pair, judge(**of_pair)) for pair, of_pair in stages.items()}
    recorder.finish({pair: one.verdicts for pair, one in found.items()})
    return found


def compare_exact(place: Workplace, recorder: Recorder) -> dict[Pair, NumberNeighbours]:
    """Run what is missing of a comparison of numbers, and judge."""
    asked = recorder.run.asked
    among = tuple(asked.interpreters)
    rounds = FreshRounds(among, place, recorder, lambda process: process.numbers, compare_numbers)
    stages = {pair: screen_numbers(asked, partial(rounds.taken, pair)) for pair in rounds.pairs()}
    found = {pair: NumberNeighbours(stage, stage.verdicts()) for pair, stage in stages.items()}
    recorder.finish({pair: one.verdicts for pair, one in found.items()})
    return found
