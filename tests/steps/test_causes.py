"""What happened in several steps, one line a cause."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.steps.events import Miss, QueriedCache, Redistribution, by_cause, ranged


def grown(length: int, call: int = 0, op: str = "bmm") -> Miss:
    reason = f"shape of self [8,{length}], was [8,{length - 1}]"
    return Miss(f"{op}(f32[8,{length}]S0)@4", reason, QueriedCache.NATIVE, cause="shape of self", call=call)


def gathered(rows: int, op: str = "redistribute") -> Redistribution:
    return Redistribution(op, f"f32[{rows},64]", ("S0",), ("R",), rows * 256)


def test_one_cause_in_five_steps_is_one_line_with_its_steps_and_the_range_of_what_changed() -> None:
    assert by_cause([[grown(n)] for n in range(9, 14)]) == [
        "bmm(f32[8,9-13]S0)@4: shape of self [8,9-13], was [8,8-12] (once in each of steps 1-5)"
    ]


def test_calls_of_two_places_are_two_causes_and_equal_ones_one_line() -> None:
    apart = by_cause([[grown(9, call=1), grown(99, call=2)], [grown(10, call=1), grown(100, call=2)]])
    assert [line.partition(":")[0] for line in apart] == ["bmm(f32[8,9-10]S0)@4", "bmm(f32[8,99-100]S0)@4"]
    [equal] = by_cause([[grown(9, call=1), grown(9, call=2)], [grown(10, call=1), grown(10, call=2)]])
    assert equal.endswith("(twice in each of steps 1-2)")


@pytest.mark.parametrize(
    ("steps", "when"),
    [
        ([[grown(9)]], "was [8,8]"),
        ([[grown(9)] * 3], "was [8,8] (3x)"),
        ([[], [grown(9)], []], "was [8,8] (once in step 2)"),
        ([[grown(9)], [], [grown(9)], [grown(9)]], "was [8,8] (once in each of steps 1, 3-4)"),
        ([[grown(9)] * 3, [grown(9)]], "was [8,8] (1 to 3 times in each of steps 1-2)"),
    ],
)
def test_a_line_says_how_often_it_was_in_which_step(steps: list[list[Miss]], when: str) -> None:
    [line] = by_cause(steps)
    assert line == f"bmm(f32[8,9]S0)@4: shape of self [8,9], {when}"


def test_redistributions_are_told_with_the_range_of_their_sizes() -> None:
    assert by_cause(
        [[gathered(3), gathered(64, "mm.default")], [gathered(4), gathered(64, "mm.default")]]
    ) == [
        "redistribute: f32[3-4,64] S0 -> R on mesh dimension 0, 768-1,024 bytes (once in each of steps 1-2)",
        "mm.default: f32[64,64] S0 -> R on mesh dimension 0, 16,384 bytes (once in each of steps 1-2)",
    ]


def test_numbers_inside_of_names_are_no_ranges() -> None:
    assert ranged(["mesh ('dp3',), were ('dp2',)", "mesh ('dp4',), were ('dp3',)"]) == (
        "mesh ('dp3',), were ('dp2',) ... ('dp4',), were ('dp3',)"
    )
