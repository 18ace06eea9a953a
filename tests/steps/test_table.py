"""The table of what was counted, and the limits of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.results import MOST_LISTED
from pytest_dtdispatch.gates.limits import complaint
from pytest_dtdispatch.report.document import MOST_NOTES, View
from pytest_dtdispatch.steps.events import Collective, Miss, QueriedCache, Redistribution, Wrapping
from pytest_dtdispatch.steps.model import StepCounts, Steps
from pytest_dtdispatch.steps.table import LIMITS, document, judge, state_of
from tests.rendered import lines_of

TEST = "test_train.py::test_step"
MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "shape of self [9,8], was [8,8]", QueriedCache.NATIVE)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)
WRAPPED = Wrapping("from_local", "f32[8,8]", ("S0",))
STEADY = StepCounts(hits=12, collectives=(("all_reduce", 1),), host_memory_growth_bytes=0)
MISSING = StepCounts(
    hits=11, missed=(MISS,), redistributions=(GATHER,), cache_growth=(("native", 1), ("python", 0))
)


def text_of(steps: Steps, verbose: bool = False, width: int = 120) -> str:
    return "\n".join(lines_of(document({TEST: (steps,), "a test without steps": ()}, View(verbose)), width))


def test_a_steady_step_is_one_line() -> None:
    assert text_of(Steps("train", (STEADY,) * 3, (STEADY,) * 5)).splitlines() == [
        "  step   calls  hits  misses  redistributes  wraps  collectives  cache+  specs+  DTensors+  steps  "
        "state",
        "test_train.py::test_step (counts of each step)",
        "  train     12    12       0              0      0            1       0       0          0    3+5  "
        "steady",
    ]


def test_what_missed_and_which_caches_grew_is_below_the_line() -> None:
    text = text_of(Steps("train", (STEADY,), (MISSING, MISSING, STEADY)))
    assert "11-12" in text
    assert "0-1" in text
    assert f"    missed {MISS} (once in each of steps 1-2)" in text
    assert "    cache entries over 3 steps: native +2" in text
    assert "python" not in text, "a cache that did not grow is not named"
    assert text.splitlines()[2].endswith("misses, grows")


def test_misses_of_other_threads_are_told_apart() -> None:
    elsewhere = StepCounts(missed=(MISS, replace(MISS, elsewhere=True)))
    assert "    1 of 2 misses were in other threads, whose hits are not counted" in text_of(
        steps_of(elsewhere)
    )


def test_a_long_list_of_misses_is_cut_unless_it_is_asked_for() -> None:
    many = tuple(
        Miss(f"op{i}.default(f32[8]R)@4", "first call of this op", QueriedCache.NATIVE) for i in range(9)
    )
    steps = Steps("train", (), (StepCounts(missed=many), StepCounts()))
    assert text_of(steps).count("missed op") == MOST_NOTES
    assert "and 4 more; -v lists them" in text_of(steps)
    assert text_of(steps, verbose=True).count("missed op") == 9


def test_verbose_tells_redistributions_collectives_warm_up_and_memory() -> None:
    step = StepCounts(
        redistributions=(GATHER,), collectives=(("all_gather", 1),), host_memory_growth_bytes=4096
    )
    text = text_of(Steps("train", (MISSING, STEADY), (step, step)), verbose=True)
    gathered = "redistributed mm.default: f32[8,8] S0 -> R on mesh dimension 0, 256 bytes"
    assert f"    {gathered} (once in each of steps 1-2)" in text
    assert "    collectives over 2 steps: all_gather 2x" in text
    assert "    misses of each step of the warm-up: 1, 0" in text
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


# Limits

# A step that has two of each.
TWO = StepCounts(
    missed=(MISS, MISS),
    cache_growth=(("native", 2), ("FakeTensor", 1)),
    spec_growth=2,
    redistributions=(GATHER, GATHER),
    collectives=(("all_gather", 1), ("all_reduce", 1)),
    collective_runs=(Collective("all_gather", 64), Collective("all_reduce", 8)),
    wraps=(WRAPPED, WRAPPED),
)


def steps_of(*counts: StepCounts) -> Steps:
    return Steps("train", (), counts)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_over_a_limit_is_told_with_what_it_has(limit: str) -> None:
    title, what, *_ = complaint(judge(steps_of(StepCounts(), TWO), {limit: 1})).splitlines()
    assert (title, what) == ("train: over its limits", f"{limit}=1, and step 2 has 2")


@pytest.mark.parametrize(
    ("steps", "limits"),
    [
        *[(steps_of(TWO), {limit: 2}) for limit in LIMITS],
        (steps_of(TWO), {}),
        (Steps("train", (TWO,), (StepCounts(),)), {"misses": 0}),  # the warm-up is not judged
        (steps_of(), dict.fromkeys(LIMITS, 0)),
    ],
    ids=[*LIMITS, "no limits", "warm-up", "no steps"],
)
def test_what_is_at_a_limit_or_has_none_is_not_over_it(steps: Steps, limits: dict[str, int]) -> None:
    assert not complaint(judge(steps, limits))


def test_a_limit_of_0_is_a_limit() -> None:
    assert complaint(judge(steps_of(TWO), {"misses": 0}))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_one_step_over_the_limit_is_enough_and_the_worst_is_told(misses: list[int], most: int) -> None:
    steps = steps_of(*(StepCounts(missed=(MISS,) * count) for count in misses))
    told, worst = complaint(judge(steps, {"misses": most})), max(misses)
    assert bool(told) == (worst > most)
    assert not told or f"and step {misses.index(worst) + 1} has {worst}\n" in told


def test_an_excess_lists_what_it_consists_of_up_to_a_length() -> None:
    assert complaint(judge(steps_of(TWO), {"redistributes": 0, "collectives": 1})) == (
        "train: over its limits\n"
        f"redistributes=0, and step 1 has 2\n    {GATHER} (2x)\n"
        "collectives=1, and step 1 has 2\n    all_gather: 64 bytes\n    all_reduce: 8 bytes"
    )
    different = (Miss(f"mm {i}", "another shape", QueriedCache.NATIVE) for i in range(MOST_LISTED + 3))
    assert complaint(judge(steps_of(StepCounts(missed=(*different,))), {"misses": 0})).endswith(
        "\n    and 3 more"
    )
