"""What is shown of a stream of shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dtdispatch.report.document import Tone, View
from pytest_dtdispatch.steps.happened import Asked, Miss
from pytest_dtdispatch.steps.model import StepCounts, Steps
from pytest_dtdispatch.steps.stream import LOST, stream_of
from pytest_dtdispatch.steps.stream_table import FIRST_SHAPES, MOST_SHAPES
from pytest_dtdispatch.steps.table import document, state_of
from tests.rendered import lines_of

TEST = "test_decode.py::test_stream"
NEW = "shape of self [9,8], was [8,8]"
MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", NEW, Asked.NATIVE)


def counts_of(missed: list[Miss]) -> StepCounts:
    return StepCounts(hits=9 - len(missed), missed=tuple(missed), cache_growth=(("native", len(missed)),))


def steps_of(shapes: list[str], misses: list[int], took_ms: list[float]) -> Steps:
    """Make steps that miss on calls of the shape of their input, again where it came before."""
    counted = tuple(
        counts_of(
            [replace(MISS, signature=f"mm({shape})@4", reason=LOST[0] if shape in shapes[:i] else NEW)] * n
        )
        for i, (shape, n) in enumerate(zip(shapes, misses, strict=True))
    )
    stream = stream_of(shapes, (), counted, [round(1_000_000 * ms) for ms in took_ms])
    return Steps("decode", (), counted, stream)


def text_of(steps: Steps, verbose: bool = False) -> list[str]:
    return lines_of(document({TEST: (steps,)}, View(verbose)))


BATCHES = steps_of(["f32[8]", "f32[16]", "f32[8]", "f32[16]"], [2, 2, 0, 0], [5, 7, 1, 1])


def test_a_stream_says_when_it_is_steady_and_what_a_miss_costs() -> None:
    assert [line.strip() for line in text_of(BATCHES)[3:7]] == [
        "inputs of 2 shapes in 4 steps: steady after 2 shapes and 2 steps, no miss in the 2 steps since; "
        "2 misses a shape",
        "2 steps that missed took 6.000 ms (5.000 to 7.000), 2 that did not 1.000 ms (1.000 to 1.000)",
        "a step that misses takes 5.000 ms (4.000 to 6.000) longer than one of its shape, "
        "2.500 ms (2.000 to 3.000) a miss",
        f"missed mm(f32[8-16])@4: {NEW} (twice in each of steps 1-2)",
    ]


def test_each_shape_is_a_line() -> None:
    assert text_of(BATCHES)[-4:] == [
        "  shape    steps  missed  misses  cache+  ms missing  ms not missing",
        f"{TEST}: inputs of decode (counts of all steps of a shape)",
        "  f32[8]       2       1       2       2       5.000           1.000",
        "  f32[16]      2       1       2       2       7.000           1.000",
    ]


def test_of_many_shapes_the_rest_is_one_line_unless_all_are_asked_for() -> None:
    lengths = range(1, 101)
    steps = steps_of([f"f32[8,{n}]" for n in lengths], [3] * 100, [2.0] * 100)
    shown = [line.strip() for line in text_of(steps) if line.strip().startswith(("f32", "9"))]
    assert len(shown) == FIRST_SHAPES + 1
    assert shown[-1].startswith(f"{100 - FIRST_SHAPES} more shapes: f32[8,{FIRST_SHAPES + 1}-100]")
    assert shown[-1].split()[4:8] == ["95", "95", "285", "285"]
    verbose = [line for line in text_of(steps, verbose=True) if line.strip().startswith("f32")]
    assert len(verbose) == 100
    few = steps_of([f"f32[{n}]" for n in range(MOST_SHAPES)], [0] * MOST_SHAPES, [1.0] * MOST_SHAPES)
    assert not any("more shapes" in line for line in text_of(few))


@pytest.mark.parametrize(
    ("misses", "took_ms", "said"),
    [
        ([0, 0, 0], [1, 1, 1], "inputs of 2 shapes in 3 steps: no step missed"),
        ([1, 1, 1], [1, 1, 1], "never steady, every step missed; 1.5 misses a shape"),
        ([1, 1, 1], [1, 1, 1], "what a miss costs is not known, as there is no step without one"),
        ([1, 0, 1], [9, 1, 9], "never steady, the last step missed"),
        ([1, 0, 0], [2, 1, 3], "what a miss costs is not told apart from noise: -1.000 to -1.000 ms a step"),
        (
            [1, 0, 0],
            [5, 1, 1],
            "step that missed took 4.000 ms longer than one of its shape, 4.000 ms a miss",
        ),
        (
            [0, 1, 0],
            [1, 5, 1],
            "took 4.000 ms longer than one of another shape, whose work may differ",
        ),
        ([1, 0, 1], [9, 1, 9], "1 step missed again, on f32[8]: calls that had missed before, whose plans"),
        ([1, 0, 1], [9, 1, 9], f"missed again mm(f32[8])@4: {LOST[0]} (once in step 3)"),
        ([1, 0, 1], [9, 1, 9], f"missed mm(f32[8])@4: {NEW} (once in step 1)"),
    ],
)
def test_what_is_not_known_is_said(misses: list[int], took_ms: list[float], said: str) -> None:
    assert any(said in line for line in text_of(steps_of(["f32[8]", "f32[9]", "f32[8]"], misses, took_ms)))


def test_new_calls_on_a_shape_that_came_before_are_told_apart_from_calls_that_missed_before() -> None:
    lengths = [replace(MISS, signature=f"cat.default(f32[{n}])@4") for n in range(8, 11)]
    counted = tuple(counts_of([one]) for one in lengths)
    steps = Steps("decode", (), counted, stream_of(["f32[1]"] * 3, (), counted, [1] * 3))
    text = "\n".join(text_of(steps))
    assert "2 steps missed on inputs of a shape that came before, f32[1]: something else than" in text
    assert "missed again" not in text
    assert "inputs of 1 shape in 3 steps: never steady, every step missed; 1 miss a step" in text
    assert state_of(steps) == "misses"


def test_no_cost_is_shown_where_no_step_missed() -> None:
    assert not any("longer" in line or "costs" in line for line in text_of(steps_of(["a"], [0], [1.0])))


@pytest.mark.parametrize(
    ("steps", "state", "tone"),
    [
        (BATCHES, "steady after 2 shapes", Tone.GOOD),
        (steps_of(["a", "a"], [0, 0], [1, 1]), "steady", Tone.GOOD),
        (steps_of(["a", "b"], [1, 1], [1, 1]), "misses", Tone.BAD),
        (steps_of(["a", "a", "b"], [1, 1, 0], [1, 1, 1]), "misses again", Tone.BAD),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_of_a_stream(steps: Steps, state: str, tone: Tone) -> None:
    [table, _] = document({TEST: (steps,)}, View()).blocks
    assert state_of(steps) == state
    assert table.groups[0].lines[0].tone is tone  # type: ignore[union-attr]


def test_a_stream_that_grows_after_it_was_steady_says_so() -> None:
    grown = replace(BATCHES, steps=(*BATCHES.steps[:3], StepCounts(spec_growth=1)))
    assert state_of(grown) == "steady after 2 shapes, grows"
