"""Blocks of samples: more samples until a row's verdict is decided, and more blocks before it fails.

Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import sleep

from pytest_dtdispatch.core.measurement import SLOWED, Contains, Figures, Measurement, Samples, State, merge
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.core.verdicts import MAX_BLOCKS, Outlook
from pytest_dtdispatch.rounds.plan import Plan, agreed, is_precise

# Seconds before each repetition of a row that would fail. In 240 s on a quiet machine, a spin loop had 39
# periods of at least 50 ms, the longest 1.9 s, in which everything took 1.2 times as long.
PAUSES_S: tuple[float, ...] = tuple(0.5 * 2**number for number in range(MAX_BLOCKS - 1))
# Per block. With seven, 4 of 14 clean runs failed while other machines slowed the cores, 0 of 5 with three.
MAX_EXTENSIONS = 3
CLOSELY = 0.05  # precision of the median of a saved row that a threshold of 20 % needs
STEADY = (State.HIT, State.CALL)


class Blocks:
    """Blocks of samples of one row. Without a gate, there is one block.

    With a gate, a block is extended until each state of the row is decided, or precise if the gate does not
    compare it, or until the time limit. While a state would fail, or the core was slow, another block follows
    after a pause. Such a state is judged by its quietest block. Samples from different speeds of the core are
    not mixed in a block: the faster ones remain.

    Args:
        plan: rounds, time limit and gate.
        label: label of the row; empty for rows that are not judged while they are measured.
        mesh: mesh of the row, as text.
    """

    def __init__(self, plan: Plan, label: str, mesh: str) -> None:
        self._plan = plan
        self._gate = plan.gate if label else None
        self._row = Measurement(label, label, label, mesh, Contains.DISPATCH, 1, Figures())
        self._blocks: list[Figures] = []
        self._open: set[State] = set()  # states of the last block that are extended
        self._repeated: set[State] = set()
        self._extensions = 0
        if self._gate and plan.sampler.unit.is_time:
            plan.speed.find_fastest()
        self._began = plan.sampler.clock() if self._gate else 0

    def wants_more(self) -> bool:
        """Return whether to measure the row again; sleep before another block."""
        if not self._blocks or self._gate is None:
            return not self._blocks
        row = replace(self._row, figures=self.figures)
        outlooks = self._agreed({of.state: self._without_gate(of) for of in row.recorded()} | self._gate(row))
        self._open = {state for state, outlook in outlooks.items() if outlook is Outlook.OPEN}
        again = {state for state, outlook in outlooks.items() if outlook in (Outlook.SLOW, Outlook.FAILING)}
        self._repeated |= again
        if self._open:
            self._extensions += 1
            return True
        if not again or len(self._blocks) == MAX_BLOCKS:
            return False
        show_progress("{} may be slowed: measuring it again in {:g} s", self._row.label, self._pause_s)
        if Outlook.FAILING not in outlooks.values():
            self._plan.speed.pauses_left_s -= self._pause_s
        sleep(self._pause_s)
        self._extensions, self._began = 0, self._plan.sampler.clock()
        return True

    @property
    def _pause_s(self) -> float:
        return PAUSES_S[len(self._blocks) - 1]

    def _without_gate(self, samples: Samples) -> Outlook:
        """Return the outlook of a state that no gate compares: it needs a fast core and a precise median."""
        if samples.state is State.LOCAL:
            return Outlook.DECIDED
        if self._plan.speed.is_slow(samples.speed_ns):
            return Outlook.SLOW
        return Outlook.DECIDED if is_precise(samples.values, CLOSELY) else Outlook.OPEN

    def _agreed(self, outlooks: Mapping[State, Outlook]) -> dict[State, Outlook]:
        """Return the outlooks over all ranks: a state is measured again if any rank needs it and has time."""
        took_s = (self._plan.sampler.clock() - self._began) / 1e9
        another_s = took_s / (1 + self._extensions)
        is_in_time = self._extensions < MAX_EXTENSIONS and took_s + another_s <= self._plan.max_time_s
        impossible = set[Outlook]()
        if self._plan.fewest is None or not is_in_time:
            impossible.add(Outlook.OPEN)
        if len(self._blocks) == MAX_BLOCKS or self._pause_s > self._plan.speed.pauses_left_s:
            impossible.add(Outlook.SLOW)
        needs = [outlooks.get(state, Outlook.DECIDED) for state in State]
        needs = [Outlook.DECIDED if need in impossible else need for need in needs]
        settled = agreed(self._plan.agreement, "the blocks", *(-need for need in needs))
        return {state: Outlook(-least) for state, least in zip(State, settled, strict=True)}

    def add(self, figures: Figures) -> None:
        """Add a measurement to the last block, or as a new block."""
        if not self._open:
            self._blocks.append(figures)
            return
        extended = {*self._open, *([State.LOCAL] if self._open & {*STEADY} else [])}
        last, more = self._blocks[-1], merge([self._blocks[-1], figures])
        new = {each.state: each for each in figures.samples}
        merged = {each.state: each for each in more.samples}
        samples = tuple(
            _faster(old, new[old.state], merged[old.state]) if old.state in extended & new.keys() else old
            for old in last.samples
        )
        self._blocks[-1] = replace(more, samples=samples)

    @property
    def figures(self) -> Figures:
        """Figures of the first block, with the quietest block's samples of each repeated state."""
        first, *others = self._blocks
        by_state = [{each.state: each for each in of.samples if each.values} for of in self._blocks]
        chosen: dict[State, Samples] = {}
        for state in sorted(self._repeated if others else ()):
            blocks = [of for of in by_state if state in of]
            quietest = min(blocks, key=lambda of: of[state].median_ns)
            slow = sum(of[state].speed_ns > SLOWED * quietest[state].speed_ns for of in blocks)
            chosen[state] = replace(quietest[state], blocks=len(blocks), slow_blocks=slow)
            if state in STEADY and State.LOCAL in quietest:  # the overhead is their difference
                chosen[State.LOCAL] = quietest[State.LOCAL]
        samples = tuple(chosen.get(each.state, each) for each in first.samples)
        notes = [f"not measured again: {note}" for of in others if not of.samples for note in of.notes]
        return replace(first, samples=samples, notes=(*first.notes, *dict.fromkeys(notes)))


def _faster(old: Samples, new: Samples, both: Samples) -> Samples:
    """Return the samples of the faster core, or all samples if its speed was the same."""
    if new.speed_ns > SLOWED * old.speed_ns:
        return old
    return new if old.speed_ns > SLOWED * new.speed_ns else both
