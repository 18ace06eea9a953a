"""Counts of a step, and the events of several steps with one line per cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    QueriedCache,
    Redistribution,
    Unwrapping,
    Wrapping,
    by_cause,
    merge_texts,
)
from pytest_dtdispatch.steps.model import StepCounts, Steps

MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "first call of this op", QueriedCache.NATIVE)
AT = CodePlace("/train.py", 3, "layers.0", Phase.FORWARD)
WRAPPED = Wrapping("from_local", "f32[8,8]", ("S0",), place=AT)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0", "R"), ("R", "R"), 256)
RAN = (Collective("all_gather", 64), Collective("all_reduce"), Collective("all_gather"))
STEP = StepCounts(
    hits=2,
    unpropagated=1,
    events=(MISS, GATHER, *RAN, WRAPPED, WRAPPED, Unwrapping("to_local", "f32[8]", ("R",))),
    cache_growth=(("native", 1), ("FakeTensor", 3), ("python", 0)),
    spec_growth=4,
    dtensor_growth=5,
)


def grown(length: int, call: int = 0, op: str = "bmm") -> Miss:
    reason = f"shape of self [8,{length}], was [8,{length - 1}]"
    return Miss(f"{op}(f32[8,{length}]S0)@4", reason, QueriedCache.NATIVE, cause="shape of self", call=call)


def gathered(rows: int, op: str = "redistribute") -> Redistribution:
    return Redistribution(op, f"f32[{rows},64]", ("S0",), ("R",), rows * 256)


def test_totals_exclude_the_warmup() -> None:
    steps = Steps("train", (STEP, STEP, STEP), (STEP, STEP))
    assert (steps.calls, steps.hits, steps.misses, steps.missed) == (8, 4, 2, (MISS, MISS))
    assert (steps.collectives, steps.collective_runs) == ({"all_gather": 4, "all_reduce": 2}, RAN * 2)
    assert steps.cache_growth == {"native": 2, "FakeTensor": 6, "python": 0}
    assert (steps.spec_growth, steps.dtensor_growth) == (8, 10)
    per_step = steps.misses_per_step, steps.redistributes_per_step, steps.collectives_per_step
    assert (*per_step, steps.wraps_per_step, steps.unwraps_per_step) == (1, 1, 3, 2, 1)
    explicit = StepCounts(events=(gathered(8), gathered(8)))
    assert Steps("train", (), (STEP, explicit, STEP, explicit)).implicit_per_step == 0.5
    assert (steps.spec_growth_per_step, steps.dtensor_growth_per_step) == (4, 5)
    assert steps.cache_growth_per_step == 3, "growth of the cache that grew most"


def test_count_lists_its_components() -> None:
    steps = Steps("train", (), (STEP, STEP))
    wraps, growth = steps.wraps_per_step, steps.cache_growth_per_step
    assert isinstance(wraps, Count)
    assert isinstance(growth, Count)
    assert wraps.details == (f"from_local: f32[8,8] S0, at {AT} (twice in each of steps 1-2)",)
    assert growth.details == ("native: +2 over 2 steps", "FakeTensor: +6 over 2 steps")


def test_counts_are_zero_if_nothing_is_measured() -> None:
    steps = Steps("train", (), ())
    numbers = [getattr(steps, name) for name in dir(steps) if name.endswith("_per_step") and name[0] != "_"]
    assert len(numbers) == 12
    assert not any((steps.calls, steps.unsteady, *numbers))


def test_source_lines_do_not_affect_run_equality() -> None:
    elsewhere = replace(WRAPPED, place=replace(AT, line=4))
    assert elsewhere == WRAPPED
    assert elsewhere.origin != WRAPPED.origin, "a different cause"
    assert replace(STEP, hits=3) != STEP


def test_step_with_different_call_count_is_unsteady() -> None:
    three, four = StepCounts(hits=3), StepCounts(hits=4)
    assert Steps("", (), (three, three, four, three)).unsteady == "3 calls in step 1 and 4 in step 3"
    assert not Steps("", (four,), (three, three)).unsteady, "the warm-up may have different counts"


def test_repeated_cause_is_one_line_with_ranges() -> None:
    assert by_cause([[grown(n)] for n in range(9, 14)]) == [
        "bmm(f32[8,9-13]S0)@4: shape of self [8,9-13], was [8,8-12] (once in each of steps 1-5)"
    ]
    assert by_cause([[gathered(n), gathered(64, "mm.default")] for n in (3, 4)]) == [
        "mm.default: f32[64,64] S0 -> R, 16,384 bytes (once in each of steps 1-2)",
        "redistribute: f32[3-4,64] S0 -> R, 768-1,024 bytes (once in each of steps 1-2)",
    ]


def test_negative_numbers_are_not_merged_into_a_range() -> None:
    last, first = "value of dim -1, was 0", "value of dim -3, was 0"
    assert merge_texts([last, first]) == f"{last} ... -3, was 0"


def test_calls_are_separate_causes_unless_equal() -> None:
    apart = by_cause([[grown(9, call=1), grown(99, call=2)], [grown(10, call=1), grown(100, call=2)]])
    assert [line.partition(":")[0] for line in apart] == ["bmm(f32[8,9-10]S0)@4", "bmm(f32[8,99-100]S0)@4"]
    [equal] = by_cause([[grown(9, call=1), grown(9, call=2)], [grown(10, call=1), grown(10, call=2)]])
    assert equal.endswith("(twice in each of steps 1-2)")


@pytest.mark.parametrize(
    ("steps", "when"),
    [
        ([1], ""),
        ([3], " (3x)"),
        ([0, 1, 0], " (once in step 2)"),
        ([1, 0, 1, 1], " (once in each of steps 1, 3-4)"),
        ([3, 1], " (1 to 3 times in each of steps 1-2)"),
    ],
)
def test_cause_line_has_count_and_steps(steps: list[int], when: str) -> None:
    [line] = by_cause([[grown(9)] * times for times in steps])
    assert line == f"bmm(f32[8,9]S0)@4: shape of self [8,9], was [8,8]{when}"


def in_layer(
    layer: int, source: str = "S0", line: int = 16, name: str = "wq", op: str = "mm"
) -> Redistribution:
    place = CodePlace("/model.py", line, f"layers.{layer}.{name}", Phase.FORWARD)
    return Redistribution(op, "f32[8,8]", (source,), ("R",), 256, place=place)


@pytest.mark.parametrize("layers", [3, 12, 48])
def test_cause_in_every_layer_is_summed(layers: int) -> None:
    step = [in_layer(layer) for layer in range(layers)] * 2
    text = "mm: f32[8,8] S0 -> R, 256 bytes, at /model.py:16 in layers.*.wq (forward)"
    assert by_cause([step]) == [f"{text} ({2 * layers}x)"]
    assert by_cause([step, step]) == [f"{text} ({2 * layers} times in each of steps 1-2)"]
    alone = by_cause([step], each_layer=True)
    assert alone == [f"{text.replace('*', str(layer))} (2x)" for layer in range(layers)]


def test_causes_differing_beyond_layer_are_not_folded() -> None:
    step = [
        in_layer(0),
        in_layer(1, source="P"),
        in_layer(1, line=17),
        in_layer(1, name="wk"),
        in_layer(1, op="add"),
        Collective("all_gather", 65, place=in_layer(1).place),
        Collective("all_gather", 64, place=in_layer(2).place),
        WRAPPED,
    ]
    assert by_cause([step]) == by_cause([step], each_layer=True) == [*map(str, step)]


def test_varying_shapes_of_layers_are_one_range() -> None:
    def missed(rows: int) -> list[Miss]:
        return [replace(grown(rows, call=layer), place=in_layer(layer).place) for layer in range(3)]

    [line] = by_cause([missed(rows) for rows in (9, 10, 11)])
    assert line == (
        "bmm(f32[8,9-11]S0)@4: shape of self [8,9-11], was [8,8-10], "
        "at /model.py:16 in layers.*.wq (forward) (3 times in each of steps 1-3)"
    )


def test_numbers_in_names_are_not_merged_into_ranges() -> None:
    assert merge_texts(["mesh ('dp3',), were ('dp2',)", "mesh ('dp4',), were ('dp3',)"]) == (
        "mesh ('dp3',), were ('dp2',) ... ('dp4',), were ('dp3',)"
    )
