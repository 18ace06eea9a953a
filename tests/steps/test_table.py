"""The table of what was counted."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.report.document import MOST_NOTES, View
from pytest_dtdispatch.steps.model import Asked, Miss, Redistribution, StepCounts, Steps
from pytest_dtdispatch.steps.table import document, state_of
from tests.rendered import lines_of

TEST = "test_train.py::test_step"
MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "shape of self [9,8], was [8,8]", Asked.NATIVE)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)
STEADY = StepCounts(hits=12, collectives=(("all_reduce", 1),), host_memory_growth_bytes=0)
MISSING = StepCounts(
    hits=11, missed=(MISS,), redistributions=(GATHER,), cache_growth=(("native", 1), ("python", 0))
)


def text_of(steps: Steps, verbose: bool = False, width: int = 120) -> str:
    return "\n".join(lines_of(document({TEST: (steps,), "a test without steps": ()}, View(verbose)), width))


def test_a_steady_step_is_one_line() -> None:
    assert text_of(Steps("train", (STEADY,) * 3, (STEADY,) * 5)).splitlines() == [
        "  step   calls  hits  misses  redistributes  collectives  cache+  specs+  DTensors+  steps  state",
        "test_train.py::test_step (counts of each step)",
        "  train     12    12       0              0            1       0       0          0    3+5  steady",
    ]


def test_what_missed_and_which_caches_grew_is_below_the_line() -> None:
    text = text_of(Steps("train", (STEADY,), (MISSING, MISSING, STEADY)))
    assert "11-12" in text
    assert "0-1" in text
    assert f"    missed {MISS} (2x)" in text
    assert "    cache entries over 3 steps: native +2" in text
    assert "python" not in text, "a cache that did not grow is not named"
    assert text.splitlines()[2].endswith("misses, grows")


def test_a_long_list_of_misses_is_cut_unless_it_is_asked_for() -> None:
    many = tuple(Miss(f"op{i}.default(f32[8]R)@4", "first call of this op", Asked.NATIVE) for i in range(9))
    steps = Steps("train", (), (StepCounts(missed=many), StepCounts()))
    assert text_of(steps).count("missed op") == MOST_NOTES
    assert "and 4 more; -v lists them" in text_of(steps)
    assert text_of(steps, verbose=True).count("missed op") == 9


def test_verbose_tells_redistributions_collectives_warm_up_and_memory() -> None:
    step = StepCounts(
        redistributions=(GATHER,), collectives=(("all_gather", 1),), host_memory_growth_bytes=4096
    )
    text = text_of(Steps("train", (MISSING, STEADY), (step, step)), verbose=True)
    assert "    redistributed mm.default: f32[8,8] S0 -> R on mesh dimension 0, 256 bytes (2x)" in text
    assert "    collectives: all_gather 2x" in text
    assert "    misses of the warm-up: 1+0" in text
    assert "    resident memory over 2 steps: +8,192 bytes" in text


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        (Steps("a", (STEADY,), (STEADY,)), "steady"),
        (Steps("a", (), (MISSING,)), "counted"),
        (Steps("a", (), (STEADY, MISSING)), "misses, grows"),
        (Steps("a", (), (StepCounts(), StepCounts(spec_growth=1))), "grows"),
        (Steps("a", (), (StepCounts(hits=1), StepCounts(hits=2))), "unsteady"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state_says_what_is_wrong_with_a_step(steps: Steps, state: str) -> None:
    assert state_of(steps) == state


def test_an_unsteady_step_tells_both_counts() -> None:
    text = text_of(Steps("train", (), (StepCounts(hits=3), StepCounts(hits=4))))
    assert "    unsteady: 3 calls in step 1 and 4 in step 2" in text


def test_misses_stay_where_the_terminal_is_narrow() -> None:
    head = text_of(Steps("train", (STEADY,) * 3, (STEADY,) * 5), width=80).splitlines()[0]
    assert {"misses", "cache+", "specs+", "state"} <= set(head.split())
    assert len(head) <= 80
