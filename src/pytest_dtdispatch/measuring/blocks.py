"""Blocks of samples: a row takes more until its gate is decided, and is measured again before it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import sleep

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State, merge
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.core.verdicts import MAX_BLOCKS, Outlook
from pytest_dtdispatch.measuring.plan import Plan, agreed, is_known

# Seconds before each repetition of a row that would fail. In 240 s on a quiet machine a spin loop had 39
# moments of 50 ms and more, the longest 1.9 s, in which everything took 1.2 times as long.
PAUSES_S = tuple(0.5 * 2**number for number in range(MAX_BLOCKS - 1))
MAX_EXTENSIONS = 3  # of a block: with more than four times its samples the baseline's decide the interval
CLOSELY = 0.05  # how far the median of a saved row must be known for a gate of 20 % to decide by it
STEADY = (State.HIT, State.CALL)


class Blocks:
    """Blocks of one row: one without a gate.

    With a gate, a block is extended until each state of the row is decided, or known closely if the gate does
    not compare it, or its time is over. While a state would fail, another block follows after a pause. Such a
    state is judged by its quietest block.

    Args:
        plan: how much is measured, and the gate.
        label: of the row; empty for rows that are not gated one by one.
        mesh: of the row, as text.
    """

    def __init__(self, plan: Plan, label: str, mesh: str) -> None:
        self._plan = plan
        self._gate = plan.gate if label else None
        self._row = Measurement(label, label, label, mesh, Contains.DISPATCH, 1, Figures())
        self._blocks: list[Figures] = []
        self._open: set[State] = set()  # states of the last block that are extended
        self._failing: set[State] = set()
        self._extensions = 0
        self._began = plan.sampler.clock() if self._gate else 0

    def wants_more(self) -> bool:
        """Return whether the row is to be measured once more; sleep if that begins another block."""
        if not self._blocks or self._gate is None:
            return not self._blocks
        row = replace(self._row, figures=self.figures)
        unknown = {of.state for of in row.recorded() if not is_known(of.values, CLOSELY)} - {State.LOCAL}
        outlooks = self._agreed(dict.fromkeys(unknown, Outlook.OPEN) | self._gate(row))
        self._open = {state for state, outlook in outlooks.items() if outlook is Outlook.OPEN}
        failing = {state for state, outlook in outlooks.items() if outlook is Outlook.FAILING}
        self._failing |= failing
        if self._open:
            self._extensions += 1
            return True
        if not failing or len(self._blocks) == MAX_BLOCKS:
            return False
        pause_s = PAUSES_S[len(self._blocks) - 1]
        show_progress("{} would fail: measuring it again in {:g} s", self._row.label, pause_s)
        sleep(pause_s)
        self._extensions, self._began = 0, self._plan.sampler.clock()
        return True

    def _agreed(self, outlooks: Mapping[State, Outlook]) -> dict[State, Outlook]:
        """Settle with other ranks what is extended and repeated: whatever one rank needs, in its time."""
        took_s = (self._plan.sampler.clock() - self._began) / 1e9
        another_s = took_s / (1 + self._extensions)
        is_in_time = self._extensions < MAX_EXTENSIONS and took_s + another_s <= self._plan.max_time_s
        needs = {state: outlooks.get(state, Outlook.DECIDED) for state in State}
        if self._plan.fewest is None or not is_in_time:
            needs = {s: Outlook.DECIDED if need is Outlook.OPEN else need for s, need in needs.items()}
        settled = agreed(self._plan.agreement, "the blocks", *(-need for need in needs.values()))
        return {state: Outlook(-least) for state, least in zip(State, settled, strict=True)}

    def add(self, figures: Figures) -> None:
        """Add another measurement, to the last block or as the next."""
        if not self._open:
            self._blocks.append(figures)
            return
        extended = {*self._open, *([State.LOCAL] if self._open & {*STEADY} else [])}
        last, more = self._blocks[-1], merge([self._blocks[-1], figures])
        kept = {each.state: each for each in last.samples if each.state not in extended}
        samples = tuple(kept.get(each.state, each) for each in more.samples)
        self._blocks[-1] = replace(more, samples=samples)

    @property
    def figures(self) -> Figures:
        """The first block, with the quietest samples of each state that would have failed."""
        first, *others = self._blocks
        chosen: dict[State, Samples] = {}
        for state in sorted(self._failing if others else ()):
            blocks = [of for of in map(_by_state, self._blocks) if state in of]
            quietest = min(blocks, key=lambda of: of[state].median_ns)
            chosen[state] = replace(quietest[state], blocks=len(blocks))
            if state in STEADY and State.LOCAL in quietest:  # what the overhead is counted from
                chosen[State.LOCAL] = quietest[State.LOCAL]
        samples = tuple(chosen.get(each.state, each) for each in first.samples)
        notes = [f"not measured again: {note}" for of in others if not of.samples for note in of.notes]
        return replace(first, samples=samples, notes=(*first.notes, *dict.fromkeys(notes)))


def _by_state(figures: Figures) -> dict[State, Samples]:
    return {samples.state: samples for samples in figures.samples if samples.values}
