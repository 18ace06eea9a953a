"""Records of the steps of a loop, in bounded memory. Without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dtdispatch.budget.collector import Pause
from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.steps.events import Collective, Miss, QueriedCache
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.watch.model import LoopStep, LoopSteps
from pytest_dtdispatch.watch.text import disturbed_line, document, transfers_text
from tests.rendered import lines_of


def miss(rows: int, cause: str = "shape of self") -> Miss:
    text = f"shape of self [{rows},8], was [4,8]"
    return Miss(f"add.Tensor(f32[{rows},8]S0)@4", text, QueriedCache.NATIVE, cause=cause)


def missing(number: int, *missed: Miss) -> LoopStep:
    counts = StepCounts(hits=3, events=missed, cache_growth=(("native", len(missed)),))
    return LoopStep(number, counts, 9_000_000)


def steady(number: int) -> LoopStep:
    return LoopStep(number, StepCounts(hits=4), 1_000_000 + number)


def test_steps_are_classified_by_their_events() -> None:
    steps = LoopSteps()
    steps.warmup.add(missing(1, miss(4)))
    for number in range(2, 12):
        steps.add(steady(number))
    steps.add(missing(12, miss(5)))
    assert (len(steps), steps.calls, steps.misses) == (12, 48, 2)
    assert (steps.warmup.steps, steps.steady.steps, steps.disturbed.steps) == (1, 10, 1)
    assert [step.number for step in steps.disturbed_steps] == [12]
    assert steps.misses_per_step == pytest.approx(1 / 11)
    assert steps.causes == [f"{miss(5)} (1x in step 12)"]


@pytest.mark.parametrize(
    ("took_us", "pause_us", "is_paused"),
    [
        (9_000, 8_000, True),
        (9_000, 3_000, False),  # most of the time has another cause
        (1_005, 900, False),  # steady steps take the same time
        (9_000, 800, False),  # less than a tenth of the step
    ],
)
def test_only_steps_that_stand_out_are_paused(took_us: int, pause_us: int, is_paused: bool) -> None:
    steps = LoopSteps()
    for number in range(4):
        steps.add(steady(number))
    pauses = [Pause(2, pause_us * 1_000)]
    assert not steps.is_paused(took_us * 1_000, pauses)  # unknown typical range
    for number in range(4, 20):
        steps.add(replace(steady(number), took_ns=1_000_000 + 1_000 * number))
    assert steps.is_paused(took_us * 1_000, pauses) is is_paused


def test_frequent_pauses_stand_out() -> None:
    steps = LoopSteps()
    for number in range(20):
        took_ns = 1_000_000 if number % 5 else 9_000_000
        steps.add(replace(steady(number), took_ns=took_ns))
    assert steps.is_paused(9_000_000, [Pause(2, 8_000_000)])


def test_disturbed_step_names_long_pauses() -> None:
    step = replace(missing(7, miss(5)), pauses=(Pause(2, 2_000_000),))
    assert "the garbage collector paused it for 2 ms (1 pause, 1" in disturbed_line(step, LoopSteps())
    short = replace(step, pauses=(Pause(0, 200_000),))
    assert "garbage" not in disturbed_line(short, LoopSteps())


def test_range_of_a_cause_ignores_step_order() -> None:
    steps = LoopSteps()
    for number, rows in enumerate((9, 5, 31, 7), 1):
        steps.add(missing(number, miss(rows)))
    assert steps.causes == [
        "add.Tensor(f32[5-31,8]S0)@4: shape of self [5-31,8], was [4,8] (4x in steps 1 to 4)"
    ]


def test_cause_in_every_layer_is_summed() -> None:
    steps = LoopSteps()
    for number, layers in ((4, (0, 1)), (6, (1, 2)), (9, (0,))):
        for layer in layers:
            place = CodePlace("/model.py", 16, f"layers.{layer}.wq", Phase.FORWARD)
            steps.add(missing(number, replace(miss(5), place=place)))
    steps.add(missing(10, replace(miss(5), place=CodePlace("/model.py", 17, "layers.3.wq"))))
    assert steps.causes == [
        f"{miss(5)}, at /model.py:16 in layers.*.wq (forward) (5x in steps 4 to 9)",
        f"{miss(5)}, at /model.py:17 in layers.3.wq (other) (1x in step 10)",
    ]


def test_million_steps_use_bounded_memory() -> None:
    steps = LoopSteps()
    for number in range(1, 3_001):
        steps.add(missing(number, miss(number, cause=f"cause {number}")))
    assert len(steps.disturbed_steps) < 1_000
    assert steps.disturbed_steps[-1].number == 3_000
    assert len(steps.causes) <= 1_001
    assert steps.causes[-1] == "2,000 more misses of other causes"
    assert steps.misses == 3_000


def test_summary_counts_unlisted_causes() -> None:
    steps = LoopSteps()
    for number in range(1, 13):
        steps.add(missing(number, miss(number, cause=f"cause {number}")))
    lines = "\n".join(lines_of(document("loop", steps, ()), 200))
    assert lines.count("  missed ") == 10
    assert lines.endswith("  2 more misses")


def test_growing_cache_disturbs_but_emptied_cache_does_not() -> None:
    assert not LoopStep(1, StepCounts(hits=1, cache_growth=(("python", 1),))).is_steady
    assert LoopStep(1, StepCounts(hits=1, cache_growth=(("python", -7),))).is_steady


def test_disturbed_line_has_cause_cost_and_usual_time() -> None:
    steps = LoopSteps()
    for number in range(1, 30):
        steps.add(steady(number))
    step = missing(30, miss(5))
    steps.add(step)
    assert disturbed_line(step, steps) == (
        f"step 30: 1 miss: {miss(5)}; cache entries: native +1; took 9 ms, steady steps 1 to 1 ms"
    )


def test_disturbed_line_with_many_misses_is_cut() -> None:
    steps = LoopSteps()
    counts = StepCounts(events=tuple(miss(rows) for rows in range(5, 25)))
    step = LoopStep(1, counts, has_transfers=True)
    steps.add(step)
    line = disturbed_line(step, steps)
    assert line.startswith("step 1: 20 misses: add")
    assert line.endswith("; and 17 more misses")
    assert (len(steps.disturbed.times), steps.with_transfers) == (0, step)


def test_step_text_has_calls_and_transfers() -> None:
    counts = StepCounts(hits=24, events=(Collective("all_reduce"),) * 2)
    assert transfers_text(counts) == "24 calls, 2 collectives"
