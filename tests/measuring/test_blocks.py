"""Number of blocks of a row, and the samples selected for its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import Figures, Measurement, Samples, State
from pytest_dtdispatch.core.verdicts import Outlook
from pytest_dtdispatch.rounds import blocks
from pytest_dtdispatch.rounds.blocks import MAX_EXTENSIONS, PAUSES_S, Blocks
from pytest_dtdispatch.rounds.core_speed import CoreSpeed
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.sampler import WallClock
from tests.scripted_bench import FakeClock

DECIDED, OPEN, SLOW, FAILING = Outlook
SLOWER, STEADY = (1500,) * 6, (1000,) * 6


def figures(
    hit: Sequence[int] = STEADY, miss: Sequence[int] = STEADY, local: int = 100, speed_ns: int = 0
) -> Figures:
    ns = {State.MISS: miss, State.HIT: hit, State.LOCAL: (local,) * 6}
    samples = (Samples(state, tuple(values), speed_ns=speed_ns) for state, values in ns.items())
    return Figures(4, tuple(samples))


class Run:
    """Adds measurements of a row, each taking a second, until no more are needed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        self.clock = FakeClock()
        self.judged: list[Figures] = []
        monkeypatch.setattr(blocks, "sleep", self.pauses.append)

    def take(
        self,
        measured: Sequence[Figures],
        outlooks: Sequence[dict[State, Outlook]],
        label: str = "mul",
        **plan: Any,
    ) -> tuple[int, Figures]:
        """Return the number of measurements and the figures; the last item of each list repeats."""

        def gate(row: Measurement) -> dict[State, Outlook]:
            self.judged.append(row.figures)
            return outlooks[min(len(self.judged), len(outlooks)) - 1]

        sampler = WallClock(self.clock)
        added = Blocks(
            Plan(sampler=sampler, gate=gate, **{"fewest": 20, "max_time_s": 9.0} | plan), label, "4"
        )
        count = 0
        while added.wants_more():
            added.add(measured[min(count, len(measured) - 1)])
            self.clock.passes(10**9)
            count += 1
        return count, added.figures


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def hits(found: Figures) -> Samples:
    return next(samples for samples in found.samples if samples.state is State.HIT)


@pytest.mark.parametrize("label", ["", "mul"])
def test_decided_row_is_one_block(run: Run, label: str) -> None:
    assert run.take([figures()], [{State.HIT: DECIDED}], label) == (1, figures())
    assert run.pauses == []
    assert len(run.judged) == bool(label)


def test_only_undecided_state_is_extended(run: Run) -> None:
    count, found = run.take([figures()], [{State.MISS: OPEN, State.HIT: DECIDED}, {}])
    assert count == 2
    assert {samples.state: len(samples.values) for samples in found.samples} == {
        State.MISS: 12,
        State.HIT: 6,
        State.LOCAL: 6,
    }
    assert hits(found).blocks == 1
    assert run.pauses == []


@pytest.mark.parametrize(
    ("plan", "count"),
    [({}, 1 + MAX_EXTENSIONS), ({"max_time_s": 3.0}, 3), ({"max_time_s": 0.5}, 1), ({"fewest": None}, 1)],
)
def test_extension_ends_with_the_time(run: Run, plan: dict[str, Any], count: int) -> None:
    assert run.take([figures()], [{State.HIT: OPEN}], **plan)[0] == count


@pytest.mark.parametrize(("judged", "count"), [({}, 1 + MAX_EXTENSIONS), ({State.MISS: DECIDED}, 1)])
def test_uncompared_state_is_measured_closely(run: Run, judged: dict[State, Outlook], count: int) -> None:
    scattered = figures(miss=(1000, 1120) * 10)
    assert run.take([scattered], [judged])[0] == count
    assert run.take([figures(miss=(1000, 1020) * 10)], [{}])[0] == 1


def test_failing_row_is_cleared_by_a_quiet_block(run: Run) -> None:
    slow, quiet = figures(SLOWER, SLOWER, local=150), figures()
    count, found = run.take([slow, quiet], [{State.HIT: FAILING, State.MISS: DECIDED}, {}])
    assert (count, run.pauses) == (2, [PAUSES_S[0]])
    ns = {samples.state: (samples.median_ns, samples.blocks) for samples in found.samples}
    assert ns == {State.MISS: (1500, 1), State.HIT: (1000, 2), State.LOCAL: (100, 1)}


def test_failing_row_uses_every_pause(run: Run) -> None:
    measured = [figures((ns,) * 6) for ns in (1500, 1600, 1400, 1700)]
    count, found = run.take(measured, [{State.HIT: FAILING}])
    assert (count, tuple(run.pauses)) == (4, PAUSES_S)
    assert (hits(found).median_ns, hits(found).blocks) == (1400, 4)


def test_repetition_is_extended(run: Run) -> None:
    outlooks = [{State.HIT: FAILING}, {State.HIT: OPEN}, {State.HIT: FAILING}]
    count, found = run.take([figures(SLOWER)], outlooks)
    assert (count, tuple(run.pauses)) == (5, PAUSES_S)
    assert hits(found).blocks == 4


def test_failed_repetition_is_noted(run: Run) -> None:
    count, found = run.take([figures(SLOWER), Figures(notes=("it raised",))], [{State.HIT: FAILING}])
    assert count == 4
    assert (hits(found).median_ns, hits(found).blocks) == (1500, 1)
    assert found.notes == ("not measured again: it raised",)


def test_saved_row_waits_for_a_fast_core(run: Run) -> None:
    measured = [figures(SLOWER, SLOWER, 150, speed_ns=160), figures(speed_ns=100)]
    count, found = run.take(measured, [{}], speed=CoreSpeed(fastest_ns=100))
    assert (count, run.pauses) == (2, [PAUSES_S[0]])
    assert {samples.state: samples.median_ns for samples in found.samples} == {
        State.MISS: 1000,
        State.HIT: 1000,
        State.LOCAL: 100,
    }
    assert (hits(found).speed_ns, hits(found).blocks, hits(found).slow_blocks) == (100, 2, 1)


def test_waits_for_a_fast_core_end(run: Run) -> None:
    speed = CoreSpeed(fastest_ns=100, pauses_left_s=2.0)
    slow = figures(SLOWER, speed_ns=160)
    assert run.take([slow], [{}], speed=speed)[0] == 3
    assert (run.pauses, speed.pauses_left_s) == ([0.5, 1.0], 0.5)
    assert run.take([slow], [{State.HIT: SLOW}], speed=speed)[0] == 2
    assert run.take([slow], [{State.HIT: SLOW}], speed=speed)[0] == 1
    assert run.take([slow], [{State.HIT: FAILING}], speed=speed)[0] == 4, "a failure is always repeated"


@pytest.mark.parametrize(("then", "now", "medians"), [(160, 100, 1000), (100, 160, 1500), (100, 110, 1250)])
def test_measurements_at_two_speeds_stay_apart(run: Run, then: int, now: int, medians: float) -> None:
    measured = [figures((1500,) * 6, speed_ns=then), figures((1000,) * 6, speed_ns=now)]
    _, found = run.take(measured, [{State.HIT: OPEN, State.MISS: DECIDED}, {State.HIT: DECIDED}])
    assert hits(found).median_ns == medians


class OtherRank:
    """Agreement with a rank that needs two more blocks of hits."""

    def __init__(self) -> None:
        self.needs = [FAILING, FAILING, DECIDED]

    def sync(self, subject: str) -> None:
        pass

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...]:
        need = self.needs.pop(0)
        theirs = [-need if state is State.HIT else 0 for state in State]
        return tuple(map(min, numbers, theirs))


def test_all_ranks_repeat_if_one_needs_it(run: Run) -> None:
    measured = [figures((ns,) * 6) for ns in (1000, 900, 1100)]
    count, found = run.take(measured, [{}], agreement=OtherRank())
    assert (count, tuple(run.pauses)) == (3, PAUSES_S[:2])
    assert (hits(found).median_ns, hits(found).blocks) == (900, 3)
