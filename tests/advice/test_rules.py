"""Rules of advice, applied to events and their costs. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.advice import MIN_GROUPS, MIN_LOGITS_BYTES, MIXED, SMALL_GROUP_BYTES, advise, where
from pytest_dtdispatch.core.events import Cell, CodePlace, OptimizerStep, Part, Phase
from pytest_dtdispatch.steps.events import (
    AnyEvent,
    Collective,
    Miss,
    QueriedCache,
    Read,
    Redistribution,
    Remedy,
    Unwrapping,
    Wrapping,
)
from pytest_dtdispatch.steps.model import StepCounts

TRAIN = CodePlace("train.py", 7, "", Phase.FORWARD)
OPTIMIZER = CodePlace("train.py", 9, "", Phase.OPTIMIZER)
US = 1_000.0


def layer(number: int, name: str = "attention.wq", line: int = 16) -> CodePlace:
    return CodePlace("model.py", line, f"layers.{number}.{name}", Phase.FORWARD)


def moved(place: CodePlace, number: int = 0, result: int = 0, **changes: Any) -> Redistribution:
    event = Redistribution("redistribute", "f32[64,64]", ("S0",), ("R",), 8_192, number, result, place=place)
    return replace(event, **changes)


def backward(place: CodePlace) -> CodePlace:
    return replace(place, phase=Phase.BACKWARD)


def seen(
    *events: AnyEvent, cells: Sequence[Cell] = (), steps: int = 3, optimizer: OptimizerStep | None = None
) -> list[str]:
    step = StepCounts(events=events)
    total_ns = sum(cell.ns for cell in cells)
    return [line for one in advise([step] * steps, cells, total_ns, [optimizer]) for line in one.lines]


def spent(
    place: CodePlace, us: float, part: Part = Part.MOVING, op: str = "redistribute f32 S0 -> R"
) -> Cell:
    return Cell(part, op, place, us * US, 1.0)


def test_repeated_redistribution_in_each_layer_is_one_finding() -> None:
    lines = [layer(number, f"attention.{name}") for number in range(2) for name in ("wq", "wk", "wv")]
    forward = [moved(place, 1 + number // 3) for number, place in enumerate(lines)]
    of_gradients = [moved(backward(place), source=("P",), target=("S0",)) for place in lines]
    cells = [*(spent(place, 100) for place in lines), *(spent(backward(place), 50) for place in lines)]
    assert seen(*forward, *of_gradients, cells=cells) == [
        "f32[64,64] S0 -> R redistributed 3 times in each of 2 places, at model.py:16 "
        "(forward, layers.*.attention): redistribute it once before",
        # 8 of 12 redistributions are saved; a third of the time remains.
        "  saves at most 8 redistributions, about 600 us (66.7%), in each step",
    ]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([moved(TRAIN, 1), moved(TRAIN, 2)], id="two tensors"),
        pytest.param([moved(TRAIN, 1), moved(TRAIN, 1, target=("S1",))], id="two targets"),
        pytest.param([moved(TRAIN), moved(TRAIN)], id="tensors that are not known"),
        pytest.param([moved(TRAIN, 1), moved(OPTIMIZER, 1)], id="two phases"),
        pytest.param(
            [moved(TRAIN, 1, 2), moved(TRAIN, 3, source=("R",), target=("S0",))], id="there, and another back"
        ),
        pytest.param([moved(TRAIN, 1, 2), moved(TRAIN, 2, source=("R",), target=("S1",))], id="on and on"),
        pytest.param([moved(TRAIN, op="add", source=("P",))], id="an op that reduces partial sums"),
        pytest.param([moved(TRAIN, op="addmm", bytes=0)], id="an op that moves nothing to other ranks"),
        pytest.param([moved(TRAIN, tensor="f32[]", source=("P",))] * 2, id="two sums"),
        pytest.param([moved(TRAIN, tensor="f32[64]", source=("P",))] * 6, id="partial sums of many numbers"),
        pytest.param([Wrapping("from_local", "f32[8]", ("R",), 1, place=TRAIN)], id="one wrap"),
        pytest.param([Wrapping("from_local", "f32[8]", ("R",), place=TRAIN)] * 3, id="wraps of gradients"),
    ],
)
def test_uncertain_events_have_no_advice(events: list[AnyEvent]) -> None:
    assert seen(*events) == []


def test_redistribution_there_and_back_has_advice() -> None:
    there, back = moved(TRAIN, 1, 2), moved(replace(TRAIN, line=8), 2, 3, source=("R",), target=("S0",))
    assert seen(there, back) == [
        "f32[64,64] S0 -> R -> S0 redistributed there and back at train.py:7, 8 (forward): "
        "use the tensor that it was before",
        "  saves at most 2 redistributions, in each step",
    ]


def test_implied_redistribution_saves_its_share_of_its_line() -> None:
    implied = [moved(layer(number), op="mm.default") for number in range(2)]
    other = moved(layer(0), op="add.Tensor", target=("S1",))
    cells = [spent(layer(0), 100, op="mm"), spent(layer(1), 60, op="mm"), spent(layer(0), 40)]
    found = seen(*implied, other, cells=cells)
    assert found[:2] == [
        "f32[64,64] S0 -> R implied by mm.default 2 times at model.py:16 (forward, layers.*.attention.wq): "
        "make it R, or place the other operands so that it stays S0",
        "  saves at most 2 redistributions, about 110 us (55.0%), in each step",
    ]
    assert found[3] == "  saves at most 1 redistribution, about 50 us (25.0%), in each step"


def gathered(number: int, line: int = 7, **changes: Any) -> Redistribution:
    place = replace(TRAIN, line=line)
    return replace(moved(place, number, number + 100, memory_number=number), **changes)


def test_parameters_gathered_in_a_loop_are_bucketed() -> None:
    every = [gathered(number) for number in range(1, 7)]
    assert seen(*every, cells=[spent(TRAIN, 600), spent(TRAIN, 400, Part.LOCAL, "mm")]) == [
        "6 tensors gathered one by one at train.py:7 (forward): concatenate their local shards, and gather "
        "the result in buckets",
        "  saves at most 5 redistributions, about 500 us (50.0%), in each step",
    ]
    two_types = [gathered(1), gathered(2), *(gathered(number, tensor="bf16[8]") for number in (3, 4))]
    assert seen(*two_types)[1] == "  saves at most 2 redistributions, in each step"
    large = [gathered(number, bytes=10 * 2**20) for number in range(1, 7)]
    assert seen(*large)[1] == "  saves at most 3 redistributions, in each step", "60 MiB need 3 buckets"


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_number": 0},
        {"place": layer(0)},
        {"place": OPTIMIZER},
        {"bytes": 100 * 2**20},
        {"target": ("S1",)},
        {"source": ("P",)},
    ],
    ids=["of the step", "in a module", "in an optimizer", "large", "to other shards", "partial"],
)
def test_gathers_that_no_bucket_can_replace(changes: dict[str, Any]) -> None:
    assert not seen(*(gathered(number, **changes) for number in range(1, 7)))


def test_temporary_tensors_get_no_bucket_advice() -> None:
    steps = [
        StepCounts(events=tuple(gathered(10 * step + number) for number in range(1, 7))) for step in range(3)
    ]
    assert not advise(steps)


def test_gathers_with_return_are_promised_once() -> None:
    pairs = [
        (gathered(number), moved(TRAIN, number + 100, source=("R",), target=("S0",)))
        for number in range(1, 5)
    ]
    assert [line for line in seen(*chain(*pairs)) if "saves" in line] == [
        "  saves at most 8 redistributions, in each step"
    ]


def of_matrices(times: int, matrices: int = 2, **changes: Any) -> list[Redistribution]:
    numbers = range(1, times * matrices + 1)
    return [moved(OPTIMIZER, one, op="mm.default", matrices=matrices, **changes) for one in numbers]


def test_matrices_of_an_optimizer_are_gathered_once() -> None:
    norms = [moved(OPTIMIZER, op="clamp", tensor="f32[]", source=("P",), bytes=4, matrices=2)] * 3
    products = of_matrices(3, source=("P",), target=("S0",))
    assert seen(*of_matrices(12), *products, *norms, cells=[spent(OPTIMIZER, 330, op="mm")]) == [
        "2 sharded matrices redistributed 33 times at train.py:9 (optimizer): gather each matrix once: "
        "redistribute its gradient to R before the step of the optimizer",
        "  saves at most 31 redistributions, about 310 us (93.9%), in each step",
    ]


def test_matrix_gathered_once_needs_no_change() -> None:
    assert seen(*of_matrices(1)) == []
    added = [replace(one, op="add.Tensor") for one in of_matrices(1)]
    assert any("make it R" in line for line in seen(*added))


def test_other_optimizers_have_no_gather_advice() -> None:
    change = "gather each matrix once"
    assert not any(change in line for line in seen(*of_matrices(1)))
    assert not any(change in line for line in seen(*of_matrices(3, target=("S1",))))
    assert not any(change in line for line in seen(*of_matrices(3, tensor="f32[8]")))
    again = [one for one in of_matrices(1) for _ in range(3)]
    assert not any(change in line for line in seen(*again)), "the same two tensors"


def test_repeated_implied_redistribution_is_done_once() -> None:
    three = [moved(TRAIN, 1, op="mm.default")] * 3
    assert seen(*three, cells=[spent(TRAIN, 90, op="mm")]) == [
        "f32[64,64] S0 -> R implied by mm.default 3 times at train.py:7 (forward): "
        "redistribute it once before",
        "  saves at most 2 redistributions, about 60 us (66.7%), in each step",
    ]
    written = [moved(TRAIN, number, op="mm.default") for number in (1, 2, 3)]
    assert "make it R" in seen(*written)[0], "three tensors, or a tensor that is written to"


def test_logits_of_a_cross_entropy_stay_sharded() -> None:
    logits = moved(TRAIN, 1, op="_log_softmax.default", source=("S1",), operands=1, is_for_loss=True)
    large = replace(logits, bytes=MIN_LOGITS_BYTES)
    [finding, _] = seen(large)
    assert finding.startswith(
        "f32[64,64] S1 -> R redistributed for a cross entropy at train.py:7 (forward): keep"
    )
    assert not any("cross entropy" in line for line in seen(logits)), "few bytes"
    other = replace(large, is_for_loss=False)
    assert not any("cross entropy" in line for line in seen(other))
    explicit = replace(large, op="redistribute")
    assert any("cross entropy" in line for line in seen(explicit))
    assert not seen(replace(explicit, source=("S0",))), "sharded by sample"
    two_dimensions = replace(large, source=("S0", "S1"), target=("S0", "R"))
    assert not any("cross entropy" in line for line in seen(two_dimensions))


def of_fsdp(
    groups: Sequence[int], kind: str = "all_gather", nbytes: int = 64, **place: Any
) -> list[Collective]:
    at = replace(TRAIN, module="model", **place)
    return [Collective(kind, nbytes, fsdp_group=group, place=at) for group in groups]


def fsdp_step(groups: Sequence[int], nbytes: int = 64) -> list[Collective]:
    """Return the collectives of FSDP in one forward and backward: gathers, then gathers and reductions."""
    backward = [
        one
        for group in reversed(groups)
        for kind in ("all_gather", "reduce_scatter")
        for one in of_fsdp([group], kind, nbytes, phase=Phase.BACKWARD)
    ]
    return [*of_fsdp(groups, nbytes=nbytes), *backward]


def test_many_small_fsdp_groups_are_merged() -> None:
    groups = range(1, MIN_GROUPS + 1)
    assert seen(*fsdp_step(groups)) == [
        "8 FSDP groups of 64 bytes or less gathered and reduced one by one at train.py:7 (forward, model): "
        "pass larger blocks to fully_shard, or a list of several modules",
        "  saves at most 21 collectives, in each step",
    ]
    half = seen(*fsdp_step(groups, SMALL_GROUP_BYTES // 2))
    assert half[1] == "  saves at most 12 collectives, in each step", "4 groups of 1 MiB are not merged"
    assert not seen(*fsdp_step(groups[:-1]))
    assert not seen(*fsdp_step(groups, SMALL_GROUP_BYTES + 1))
    assert not seen(*fsdp_step([0] * 8)), "collectives of the program"


def test_small_groups_promise_copies_and_hooks() -> None:
    of_fsdp = fsdp_step(range(1, MIN_GROUPS + 1))
    place = of_fsdp[0].place
    step = StepCounts(events=(*of_fsdp, Collective("all_reduce", 4096, place=place)))
    parts = (Part.FSDP_COLLECTIVES, Part.FSDP_COPIES, Part.FSDP_PYTHON, Part.LOCAL)
    cells = [Cell(part, "", place, 100 * US, 1) for part in parts]
    [found] = advise([step] * 3, cells, 400 * US)
    # 24 of 25 collectives belong to FSDP. One of eight groups remains.
    assert found.ns == pytest.approx((100 * 24 / 25 + 200) * US * 7 / 8)


def test_small_groups_and_micro_batches_save_different_collectives() -> None:
    found = seen(*fsdp_step(range(1, 9)), *fsdp_step(range(1, 9)))
    assert sorted(line for line in found if "saves" in line) == [
        # Of 48 collectives, the gathers of both passes and the reductions of the last pass remain.
        "  saves at most 35 collectives, in each step",
        "  saves at most 8 reduce_scatters, in each step",
    ]


def test_repeated_gathers_of_a_group_are_merged() -> None:
    chunks = [*of_fsdp([1, 2, 3, 3, 3]), *of_fsdp([3, 3, 3, 2, 1], phase=Phase.BACKWARD)]
    assert seen(*chunks) == [
        "64 bytes of an FSDP group gathered 6 times at train.py:7 (forward, model): leave its module to the "
        "group of the module that calls it, which is gathered once",
        "  saves at most 5 all_gathers, in each step",
    ]
    twice = [*of_fsdp([1, 2, 3] * 2), *of_fsdp([3, 2, 1] * 2, phase=Phase.BACKWARD)]
    assert not seen(*twice), "two calls of the model"
    assert not seen(*of_fsdp([1, 2, 3]), *of_fsdp([3, 2, 1], phase=Phase.BACKWARD))
    assert not seen(*of_fsdp([0, 0, 0]))


def ran(kind: str, nbytes: int = 4, line: int = 7, phase: Phase = Phase.FORWARD) -> Collective:
    return Collective(kind, nbytes, place=replace(TRAIN, line=line, phase=phase))


def test_numbers_reduced_at_several_lines_are_stacked() -> None:
    numbers = [ran("all_reduce", line=line) for line in (7, 8, 9)]
    assert seen(*numbers) == [
        "3 numbers reduced one by one at train.py:7, 8, 9 (forward): stack them, and reduce the stack once",
        "  saves at most 2 collectives, in each step",
    ]
    assert not seen(*numbers[:2])
    assert not seen(*(ran("all_reduce", 4096, line) for line in (7, 8, 9)))
    assert not seen(*(replace(one, is_redistributing=True) for one in numbers))
    assert not seen(numbers[0], *(replace(one, mesh_dim="tp") for one in numbers[1:])), "two groups"


def micro_batches(*sizes: int) -> list[Collective]:
    """Return the collectives of backward passes that each reduce two groups."""
    passes = []
    for nbytes in sizes:
        gathered = ran("all_gather", nbytes)
        passes += [gathered, *[ran("reduce_scatter", nbytes, phase=Phase.BACKWARD)] * 2]
    return passes


def test_gradients_of_each_micro_batch_are_reduced_once() -> None:
    assert seen(*micro_batches(64, 64, 64)) == [
        "gradients reduced in each of 3 backward passes at train.py:7 (backward): "
        "call set_requires_gradient_sync(False) on the model before all passes but the last",
        "  saves at most 4 reduce_scatters, in each step",
    ]
    assert not seen(*micro_batches(64))
    assert not seen(*micro_batches(64, 128)), "two models"
    once, twice = micro_batches(64)[:2], micro_batches(64)
    assert not seen(*once, *twice), "one pass reduces it twice"


def test_scattered_tensors_need_no_source_rank() -> None:
    wrapped = Wrapping("distribute_tensor", "f32[8,8]", ("S0",), place=TRAIN)
    assert seen(ran("scatter", 256), wrapped, ran("scatter", 256), wrapped) == [
        "2 tensors sent to all ranks by distribute_tensor at train.py:7 (forward): "
        "if every rank has them, pass src_data_rank=None",
        "  saves at most 2 collectives, in each step",
    ]
    assert not seen(wrapped, wrapped)
    assert not seen(ran("scatter", 256), ran("scatter", 256))


def read(line: int, **changes: Any) -> Read:
    return replace(Read("item", "f32[]", place=replace(TRAIN, line=line)), **changes)


def test_reads_of_each_step_are_one_finding() -> None:
    assert seen(read(7), read(7), read(9)) == [
        "3 reads by the host at train.py:7, 9 (forward): keep values on the device, or stack them and read "
        "them once, after the step",
        "  saves at most 2 waits for the device, in each step",
    ]


def test_single_reads_and_single_steps_have_no_advice() -> None:
    assert not seen(read(7))
    assert not seen(read(7), read(9), steps=1)


def test_partial_read_advises_to_reduce_first() -> None:
    assert seen(read(7, is_partial=True, placements=("P",))) == [
        "1 partial value read at train.py:7 (forward): each rank reads its own share: "
        "reduce before the read, by full_tensor()",
        "  makes 1 partial value equal on all ranks, in each step",
    ]


def test_scalars_reduced_one_by_one_are_stacked() -> None:
    norm = moved(OPTIMIZER, op="redistribute", tensor="f32[]", source=("<_NormP(2.0)>",))
    assert seen(*[norm] * 5, cells=[spent(OPTIMIZER, 50)]) == [
        "5 partial results of one number reduced one by one at train.py:9 (optimizer): "
        "stack them, and reduce the stack once, as torch.nn.utils.get_total_norm does",
        "  saves at most 4 collectives, about 40 us (80.0%), in each step",
    ]


def test_repeated_conversions_of_one_tensor_have_advice() -> None:
    wraps = [Wrapping("from_local", "f32[8]", ("R",), 1, place=TRAIN)] * 4
    cells = [
        spent(TRAIN, 60, Part.WRAPPING, "from_local"),
        spent(backward(TRAIN), 20, Part.WRAPPING, "from_local"),
    ]
    assert seen(*wraps, cells=cells) == [
        "f32[8] R given to from_local 4 times at train.py:7 (forward): keep the DTensor of the first call",
        "  saves at most 3 calls of from_local, about 60 us (75.0%), in each step",
    ]


def test_conversions_of_recomputed_forward_are_in_backward() -> None:
    again = backward(TRAIN)
    wrap = Wrapping("from_local", "f32[8]", ("R",), 1, place=again)
    cells = [spent(again, 20, Part.WRAPPING, "from_local"), spent(TRAIN, 80, Part.LOCAL, "mm")]
    [finding, saves] = seen(wrap, wrap, cells=cells)
    assert finding.startswith("f32[8] R given to from_local 2 times at train.py:7 (backward)")
    assert saves == "  saves at most 1 call of from_local, about 10 us (10.0%), in each step"


def test_gradients_of_repeated_wraps_are_redistributed_as_often() -> None:
    wraps = [Wrapping("from_local", "f32[8]", ("R",), 1, place=layer(0, name)) for name in ("wq", "wk", "wv")]
    moves = [
        moved(backward(wrap.place or TRAIN), tensor="f32[8]", source=("P",), target=("R",)) for wrap in wraps
    ]
    cells = [spent(one.place or TRAIN, 100) for one in moves]
    assert seen(*wraps, *moves, cells=cells)[1] == (
        "  saves at most 2 calls of from_local and 2 redistributions, about 200 us (66.7%), in each step"
    )
    # If each is also redistributed in forward, the gradient may belong to that redistribution.
    explicit = [moved(wrap.place or TRAIN, number, tensor="f32[8]") for number, wrap in enumerate(wraps, 1)]
    assert seen(*wraps, *explicit, *moves)[1] == "  saves at most 2 calls of from_local, in each step"


def test_parameters_wrapped_in_each_step_have_advice() -> None:
    wraps = [Wrapping("from_local", "f32[8]", ("R",), number, True, place=layer(number)) for number in (1, 2)]
    assert seen(*wraps) == [
        "2 parameters given to from_local in each step at model.py:16 (forward, layers.*.attention.wq): "
        "make the DTensor once, and let it be the parameter",
        "  saves at most 2 calls of from_local, in each step",
    ]
    assert seen(*wraps, steps=1) == []  # unknown in a single step


def miss(
    op: str, reason: str, cause: str, place: CodePlace = TRAIN, remedy: Remedy = Remedy.NONE, **more: Any
) -> Miss:
    call = f"{op}(f32[8]S0)@4"
    return Miss(call, reason, QueriedCache.NATIVE, cause, remedy=remedy, place=place, **more)


@pytest.mark.parametrize(
    ("cause", "remedy", "cure"),
    [
        (
            "value of max",
            Remedy.NUMBER,
            "give the number as a 0-dim tensor: its value is not part of the key",
        ),
        ("shape of self", Remedy.SHAPE, "pad to a few sizes: each new shape propagates once"),
        (
            "an equal call missed before: its plan is not cached",
            Remedy.UNCACHED,
            "torch does not cache this op: run it on local tensors",
        ),
        (
            "propagation raised NotImplementedError, which is not cached",
            Remedy.UNCACHED,
            "torch does not cache this op: run it on local tensors",
        ),
    ],
)
def test_recurring_misses_have_advice(cause: str, remedy: Remedy, cure: str) -> None:
    cells = [spent(TRAIN, 900, Part.PROPAGATION, "clamp"), spent(TRAIN, 100, Part.LOCAL, "clamp")]
    event = miss("clamp.default", f"{cause} 3, was 2", cause, remedy=remedy)
    assert seen(event, cells=cells) == [
        f"clamp missed in each step at train.py:7 (forward), {cause} 3, was 2: {cure}",
        "  saves at most 1 miss, about 900 us (90.0%), in each step",
    ]


def test_single_or_unfixable_misses_have_no_advice() -> None:
    once = miss("mm.default", "first call of this op", "first call of this op")
    recurring = miss("mm.default", "shape of self", "shape of self", remedy=Remedy.SHAPE)
    inside_torch = miss("lerp_.Scalar", "value of weight", "value of weight", OPTIMIZER, Remedy.NUMBER)
    assert seen(replace(inside_torch, is_direct=False)) == []
    elsewhere = miss("mm.default", "shape of self at another position", "shape of self at another position")
    assert seen(once) == seen(elsewhere) == []
    assert advise([StepCounts(), StepCounts(events=(recurring,))]) == ()


def test_misses_without_a_line_have_a_cost() -> None:
    cells = [replace(spent(TRAIN, 900, Part.PROPAGATION, "clamp"), place=None)]
    event = miss("clamp", "value of max", "value of max", remedy=Remedy.NUMBER)
    [advice] = advise([StepCounts(events=(event,))] * 2, cells, 1_000 * US)
    assert advice.ns == 900 * US


def test_constant_growth_names_its_matching_source() -> None:
    wraps = tuple(Wrapping("from_local", "f32[8]", ("R",), number, place=TRAIN) for number in (1, 2))
    step = StepCounts(events=wraps, dtensor_growth=2, spec_growth=2, kept="f32[8] R")
    [advice] = advise([step] * 3)
    assert advice.lines == (
        "2 live DTensors more after each step, as f32[8] R, as many as from_local makes at train.py:7 "
        "(forward): keep nothing beyond the step that holds them",
        "  saves memory and no time, in each step",
    )
    assert advise([step, replace(step, dtensor_growth=1, spec_growth=1)]) == ()  # the growth may end
    [advice] = advise([StepCounts(spec_growth=1)] * 2)
    assert advice.seen == "1 live sharding spec more after each step"
    first = miss("mm.default", "first call of this op", "first call of this op")
    [advice] = advise([StepCounts(events=(first,), cache_growth=(("native", 2),))] * 2)
    assert advice.seen == "2 cached plans more after each step, as of mm.default at train.py:7 (forward)"
    assert advise([StepCounts(dtensor_growth=-1)] * 3) == ()


ADAMW = OptimizerStep("AdamW", fuses=True, is_mixed=False, is_partial=False)
UNFUSED = ADAMW._replace(name="SGD", fuses=False)
FUSED, LOCAL = "give AdamW fused=True", "step on the local tensors: the result is the same"


def optimizer_cells(*ops: str, calls: float = 8) -> list[Cell]:
    cells = [Cell(Part.DISPATCH, op, OPTIMIZER, 50 * US, calls) for op in ops]
    return [
        *cells,
        Cell(Part.OTHER, "", OPTIMIZER, 10 * US, 1),
        Cell(Part.LOCAL, ops[0], OPTIMIZER, 20 * US, 0),
        Cell(Part.LOCAL, "mm", TRAIN, 20 * US, 1),
    ]


@pytest.mark.parametrize(
    ("op", "optimizer", "steps", "change"),
    [
        ("mul_", ADAMW, "op by op over", FUSED),
        ("_foreach_mul_", ADAMW, "by lists of", f"{FUSED} in place of foreach"),
        ("mul_", ADAMW._replace(is_mixed=True), "op by op over", MIXED),
        ("mul_", UNFUSED, "op by op over", LOCAL),
        ("_foreach_mul_", UNFUSED._replace(is_mixed=True), "by lists of", LOCAL),
    ],
)
def test_optimizer_over_dtensors(op: str, optimizer: OptimizerStep, steps: str, change: str) -> None:
    first, second = seen(cells=optimizer_cells(op), optimizer=optimizer)
    assert first == f"{optimizer.name} steps {steps} DTensors at train.py:9 (optimizer): {change}"
    # Dispatching one fused op over all lists costs the same as several ops over parts of them.
    us = 10 if op.startswith("_foreach_") and optimizer.fuses else 60
    assert second == f"  saves at most 8 ops, about {us} us ({us}.0%), in each step"


@pytest.mark.parametrize(
    ("cells", "optimizer"),
    [
        (optimizer_cells("_fused_adamw_", "mul_"), ADAMW),
        (optimizer_cells("mul_", calls=1), ADAMW),
        (optimizer_cells("mul_"), ADAMW._replace(name="Muon")),  # a matrix product requires complete matrices
        (optimizer_cells("mul_"), None),
        (optimizer_cells("mul_"), UNFUSED._replace(is_partial=True)),
    ],
    ids=["fused", "one call", "not of elements", "not torch's", "partial gradients on local tensors"],
)
def test_optimizers_without_advice(cells: list[Cell], optimizer: OptimizerStep | None) -> None:
    assert seen(cells=cells, optimizer=optimizer) == []


def test_gradients_of_later_backwards_are_not_saved() -> None:
    """All micro-batches can share the first result, but each backward redistributes its own gradient."""
    forward = [moved(TRAIN, 1) for _ in range(3)]
    gradients = [moved(backward(TRAIN), source=("P",), target=("S0",)) for _ in range(3)]
    cells = [spent(TRAIN, 300), spent(backward(TRAIN), 300)]
    in_turn = [one for pair in zip(forward, gradients, strict=True) for one in pair]
    assert seen(*in_turn, cells=cells)[1] == (
        "  saves at most 2 redistributions, about 200 us (33.3%), in each step"
    )
    assert seen(*forward, *gradients, cells=cells)[1] == (
        "  saves at most 4 redistributions, about 400 us (66.7%), in each step"
    )


def test_recomputation_is_promised_once() -> None:
    """Two wraps in forward and two in the recomputation, whose gradients are redistributed."""
    wraps = [Wrapping("from_local", "f32[8]", ("R",), 1, place=layer(0, name)) for name in ("wq", "wk")]
    again = [replace(one, place=backward(one.place or TRAIN)) for one in wraps]
    moves = [moved(one.place or TRAIN, tensor="f32[8]", source=("P",), target=("R",)) for one in again]
    cells = [spent(one.place or TRAIN, 100) for one in moves]
    assert seen(*wraps, *again, *moves, cells=cells)[1:] == [
        "  saves at most 2 calls of from_local and 1 redistribution, about 100 us (50.0%), in each step"
    ]


def test_implied_redistribution_of_a_gradient_has_no_advice() -> None:
    assert seen(moved(backward(TRAIN), op="mm.default")) == []
    first, _ = seen(moved(TRAIN, 1, op="mm.default"), moved(backward(TRAIN), 2, op="mm.default"))
    assert "implied by mm.default 2 times" in first


def module_cells(*extra: Cell, local_us: float = 10.0, ops: str = "mul", calls: float = 60) -> list[Cell]:
    place = layer(0, "norm")
    return [
        Cell(Part.DISPATCH, ops, place, 80 * US, calls),
        Cell(Part.AUTOGRAD, "MulBackward0", backward(place), 20 * US, 0),
        Cell(Part.LOCAL, ops, place, local_us * US, 0),
        *extra,
    ]


def test_elementwise_module_dominated_by_dispatch_gets_local_map() -> None:
    assert seen(cells=module_cells()) == [
        "dispatch and autograd cost 10 times the local ops at model.py:16 (forward, layers.0.norm): "
        "run the module on local tensors, by local_map",
        # Six conversions cost as much as twelve of 60 ops; the time of autograd is not saved.
        "  saves at most 48 ops, about 64 us (58.2%), in each step",
    ]


@pytest.mark.parametrize(
    "cells",
    [
        module_cells(local_us=40),
        module_cells(calls=12),
        module_cells(ops="addmm"),
        module_cells(spent(layer(0, "norm"), 1)),
        module_cells(spent(layer(0, "norm"), 1, Part.WRAPPING, "to_local")),
    ],
    ids=["large shards", "few ops", "a product", "redistributes", "on local tensors already"],
)
def test_modules_without_advice(cells: list[Cell]) -> None:
    assert seen(cells=cells) == []


def test_advice_is_sorted_limited_and_above_one_percent() -> None:
    lines = [replace(TRAIN, line=line) for line in range(8)]
    events = [moved(place, op=f"op{place.line}") for place in lines]
    cells = [spent(place, 10.0 * place.line, op=f"op{place.line}") for place in lines]
    found = advise([StepCounts(events=tuple(events))], cells, 300 * US)
    assert [one.ns / US for one in found] == [70, 60, 50, 40, 30]
    cells = [*cells[:2], spent(TRAIN, 5_000, Part.LOCAL, "mm")]
    assert advise([StepCounts(events=tuple(events))], cells, 5_000 * US) == ()


def test_advice_never_promises_more_than_the_step() -> None:
    [advice] = advise([StepCounts(events=(moved(TRAIN, op="add"),))], [spent(TRAIN, 90, op="add")], 60 * US)
    assert (advice.ns, advice.share) == (60 * US, 1.0)


def test_absent_source_lines_have_a_fallback_text() -> None:
    assert where([]) == where([None]) == where([CodePlace()]) == "a line that is not known"
    assert where([CodePlace(), TRAIN]) == "train.py:7 (forward)"


SOURCE_LINES = st.sampled_from([None, TRAIN, OPTIMIZER, layer(0), layer(1), backward(layer(0)), CodePlace()])
PLACEMENTS = st.sampled_from([("S0",), ("R",), ("P",)])
NUMBERS = st.integers(0, 3)
TENSORS = st.sampled_from(["f32[]", "f32[8]"])
MOVED = st.builds(
    Redistribution,
    st.sampled_from(["redistribute", "mm.default"]),
    TENSORS,
    PLACEMENTS,
    PLACEMENTS,
    st.sampled_from([0, 64]),
    NUMBERS,
    NUMBERS,
    place=SOURCE_LINES,
)
NAMES = st.sampled_from(["from_local", "to_local"])
WRAPPED = st.builds(
    lambda kind, *args, place: kind(*args, place=place),
    st.sampled_from([Wrapping, Unwrapping]),
    NAMES,
    TENSORS,
    PLACEMENTS,
    NUMBERS,
    st.booleans(),
    place=SOURCE_LINES,
)
MISSED = st.builds(
    lambda cause, place, remedy: miss("mm.default", cause, cause, place, remedy),
    st.sampled_from(["value of max", "shape of self at another position", "first call of this op"]),
    SOURCE_LINES,
    st.sampled_from(Remedy),
)
STEPS = st.builds(
    StepCounts,
    events=st.lists(MOVED | WRAPPED | MISSED, max_size=8).map(tuple),
    dtensor_growth=st.integers(-1, 2),
    spec_growth=st.integers(-1, 2),
)
OPS = ["mul", "redistribute f32[8]S0 -> R", "Optimizer.step#AdamW.step", "_fused_adamw_"]
CELLS = st.builds(
    Cell,
    st.sampled_from(list(Part)),
    st.sampled_from(OPS),
    SOURCE_LINES,
    st.floats(-1e5, 1e6),
    st.floats(0, 99),
)


@given(st.lists(STEPS, max_size=4), st.lists(CELLS, max_size=8), st.floats(0, 1e6))
def test_arbitrary_events_have_valid_advice(
    steps: list[StepCounts], cells: list[Cell], step_ns: float
) -> None:
    found = advise(steps, cells, step_ns)
    assert len(found) <= 5
    assert all(one.lines and one.count >= 1 for one in found)
    assert all(0 <= one.share <= 1 for one in found if step_ns)
