"""Rules of advice, applied to events and their costs. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.advice import MAX_FINDINGS, RULES, advise
from pytest_dtdispatch.advice.model import CONVERT_ONCE, where
from pytest_dtdispatch.advice.placements import MIN_LOGITS_BYTES
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.core.events import (
    FOREACH,
    FUSED,
    Cell,
    CodePlace,
    FsdpGroup,
    OptimizerStep,
    Part,
    Phase,
)
from pytest_dtdispatch.core.results import Advice, AdviceKind
from pytest_dtdispatch.steps.events import (
    AnyEvent,
    Collective,
    Miss,
    OpCalls,
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
VIA: dict[str, Any] = {"via": "clip_grad_norm_"}  # the code of torch that a line called causes the event


def layer(number: int, name: str = "attention.wq", line: int = 16) -> CodePlace:
    return CodePlace("model.py", line, f"layers.{number}.{name}", Phase.FORWARD)


def backward(place: CodePlace) -> CodePlace:
    return replace(place, phase=Phase.BACKWARD)


def moved(place: CodePlace = TRAIN, number: int = 0, result: int = 0, **changes: Any) -> Redistribution:
    event = Redistribution("redistribute", "f32[64,64]", ("S0",), ("R",), 8_192, number, result, place=place)
    return replace(event, **changes)


def implied(number: int = 0, op: str = "mm.default", **changes: Any) -> Redistribution:
    """Return a redistribution that an op implies, of a tensor that another placement suits."""
    free = {"operands": 2, "is_lasting": True, "uses": 1}
    return moved(**{"number": number, "op": op, **free, **changes})


def found(
    *events: AnyEvent,
    cells: Sequence[Cell] = (),
    steps: int = 3,
    ops: Sequence[OpCalls] = (),
    optimizer: OptimizerStep | None = None,
    is_recorded: bool = True,
) -> tuple[Advice, ...]:
    step = StepCounts(events=events)
    recorded = replace(step, is_recorded=is_recorded, ops=tuple(ops), groups=(FsdpGroup(1),))
    budget = Budget("step", sum(cell.ns for cell in cells), tuple(cells))
    return advise([step] * steps, recorded, budget, [optimizer])


def rules(*events: AnyEvent, **more: Any) -> list[tuple[str, int]]:
    """Return the rule and the number of each finding; it is 0 for a fact."""
    every = found(*events, **more)
    assert all(bool(one.change) == bool(one.count) for one in every)
    return [(one.rule, one.count) for one in every]


def saved(*events: AnyEvent, **more: Any) -> list[Any]:
    """Return the rule, the number, the bytes and the microseconds of each finding."""
    return [(one.rule, one.count, one.bytes, pytest.approx(one.ns / US)) for one in found(*events, **more)]


def each(events: Sequence[Any], **changes: Any) -> list[Any]:
    """Change each event."""
    return [replace(one, **changes) for one in events]


def last(events: Sequence[Any], **changes: Any) -> list[Any]:
    """Change the last event."""
    return [*events[:-1], replace(events[-1], **changes)]


def numbered(events: Sequence[Any], name: str, step: int = 1) -> list[Any]:
    """Give each event another value of an attribute."""
    return [replace(one, **{name: number * step}) for number, one in enumerate(events, 1)]


def spent(
    place: CodePlace, us: float, part: Part = Part.MOVING, op: str = "redistribute f32 S0 -> R"
) -> Cell:
    return Cell(part, op, place, us * US, 1.0)


def gathered(number: int, line: int = 7, **changes: Any) -> Redistribution:
    place = replace(TRAIN, line=line)
    return replace(moved(place, number, number + 100, memory_number=number), **changes)


def ran(kind: str, nbytes: int = 4, line: int = 7, **changes: Any) -> Collective:
    return Collective(kind, nbytes, **{"place": replace(TRAIN, line=line), **changes})


def read(line: int = 7, **changes: Any) -> Read:
    return replace(Read("item", "f32[]", place=replace(TRAIN, line=line)), **changes)


def wrap(number: int = 1, place: CodePlace = TRAIN, **changes: Any) -> Wrapping:
    return replace(Wrapping("from_local", "f32[8]", ("R",), number, place=place), **changes)


def calls(count: int = 4, op: str = "mul_.Tensor", **changes: Any) -> OpCalls:
    called = OpCalls(op, count, count, True, True, True, "torch._foreach_mul_", place=TRAIN)
    return replace(called, **changes)


# Events on which each rule fires.
SHARED = [moved(TRAIN, 1)] * 3
PAIR = [moved(TRAIN, 1, 2), moved(TRAIN, 2, 3, source=("R",), target=("S0",), undoes=(0,))]
PAIR_AROUND_OPS = last(PAIR, tensor_number=4)
NORM_WEIGHTS = [moved(layer(0, "norm"), number, tensor="f32[64]", is_parameter=True) for number in (1, 2)]
GATHERED = [gathered(number) for number in range(1, 7)]
USED_THREE_TIMES = [implied(1, uses=3)] * 3
ONE_OPERAND = [implied(1, op="sort.default", operands=1, free_dims=(1,))]
UNMERGED = [moved(TRAIN, 1, source=("P", "P"), target=("R", "R"), mergeable=1)]
NUMBERS_SENT = [ran("all_reduce", line=line, reduction="sum") for line in (7, 8, 9)]
NORMS = [moved(OPTIMIZER, number, tensor="f32[]", source=("P",), bytes=4) for number in range(1, 6)]
SCATTERED = [ran("scatter", 256), wrap(0, name="distribute_tensor"), ran("scatter", 256)]
READS = [read(7), read(7), read(9)]
PARTIAL = read(is_partial=True, placements=("P",))
WRAPS = [wrap(1)] * 4
UNWRAPS = [Unwrapping("to_local", "f32[8]", ("R",), 1, place=TRAIN)] * 2
PARAMETERS = [wrap(number, layer(number), is_parameter=True) for number in (1, 2)]
GRADIENT = [implied(1, place=OPTIMIZER, source=("P",), target=("R",), is_gradient=True)] * 3
MATRICES = [implied(number, place=OPTIMIZER, matrices=2) for number in range(1, 7)]
LARGE = {"bytes": MIN_LOGITS_BYTES, "operands": 1, "is_lasting": False}
LOGITS = [implied(1, "_log_softmax.default", source=("S1",), is_for_loss=True, **LARGE)]
TEST_OF_ONE = [("dimensions of size 1", 1)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(SHARED, [("repeated", 2)], id="repeated"),
        pytest.param(PAIR, [("there and back", 2)], id="pair"),
        pytest.param(PAIR_AROUND_OPS, [("needless pair", 2)], id="pair around ops"),
        pytest.param(NORM_WEIGHTS, [("replicated weights", 2)], id="norms of a module"),
        pytest.param(GATHERED, [("loops", 5)], id="parameters in a loop"),
        pytest.param(USED_THREE_TIMES, [("implied again", 2)], id="implied again"),
        pytest.param([implied(1)], [("implied", 1)], id="implied"),
        pytest.param(ONE_OPERAND, [("implied", 1)], id="another dimension"),
        pytest.param(UNMERGED, [("flattened mesh", 1)], id="two all_reduces"),
        pytest.param(NUMBERS_SENT, [("numbers", 2)], id="numbers"),
        pytest.param(NORMS, [("norms", 4)], id="norms"),
        pytest.param(SCATTERED, [("loading", 2)], id="scattered"),
        pytest.param(READS, [("reads", 2)], id="reads"),
        pytest.param([PARTIAL], [("partial reads", 1)], id="partial read"),
        pytest.param([read(is_partial=True)], [("partial reads", 0)], id="read of a local tensor"),
        pytest.param(WRAPS, [("wraps", 3)], id="wraps"),
        pytest.param(UNWRAPS, [("wraps", 1)], id="unwraps"),
        pytest.param(PARAMETERS, [("parameters", 2)], id="parameters"),
        pytest.param(GRADIENT, [("gradients", 2)], id="partial gradient"),
        pytest.param(MATRICES, [("matrices", 4)], id="matrices"),
        pytest.param(LOGITS, [("logits", 1)], id="logits"),
    ],
)
def test_rule_fires(events: list[AnyEvent], expected: list[tuple[str, int]]) -> None:
    assert rules(*events) == expected


def unless(name: str, *lists: Any) -> list[Any]:
    """Return the parameters of a rule, and of events that lack one of its preconditions."""
    return [pytest.param(name, events, id=f"{name}: {why}") for why, events in lists]


@pytest.mark.parametrize(
    ("name", "events"),
    [
        *unless(
            "repeated",
            ("another mesh", numbered(SHARED, "mesh")),
            ("other tensors", numbered(SHARED, "tensor_number")),
            ("unknown tensors", each(SHARED, tensor_number=0)),
            ("another target", last(SHARED[:2], target=("S1",))),
            ("another phase", last(SHARED[:2], place=OPTIMIZER)),
            ("inside torch", each(SHARED, **VIA)),
        ),
        *unless(
            "there and back",
            ("something written in between", last(PAIR, undoes=())),
            ("the result used as well", last(PAIR, forward_uses=1)),
            ("an op that needs the result", [replace(PAIR[0], other_uses=1), PAIR[1]]),
            ("result used elsewhere", [replace(PAIR[0], result_uses=2), PAIR[1]]),
            ("inside torch", each(PAIR, **VIA)),
            ("back inside torch", last(PAIR, **VIA)),
            ("implied", last(PAIR, op="add.Tensor")),
        ),
        *unless(
            "replicated weights",
            ("a matrix", each(NORM_WEIGHTS, tensor="f32[64,64]")),
            ("no parameter", each(NORM_WEIGHTS, is_parameter=False)),
            ("outside of modules", each(NORM_WEIGHTS, place=TRAIN)),
            ("partial", each(NORM_WEIGHTS, source=("P",))),
            ("other shards", each(NORM_WEIGHTS, source=("S0", "S0"), target=("R", "S0"))),
            ("nothing sent", each(NORM_WEIGHTS, bytes=0)),
            ("inside torch", each(NORM_WEIGHTS, **VIA)),
        ),
        *unless(
            "loops",
            ("another mesh", numbered(GATHERED, "mesh")),
            ("each after the one before", numbered(GATHERED, "depth")),
            ("of the step", each(GATHERED, memory_number=0)),
            ("one tensor", each(GATHERED, memory_number=1)),
            ("in a module", each(GATHERED, place=layer(0))),
            ("in an optimizer", each(GATHERED, place=OPTIMIZER)),
            ("larger than buckets", each(GATHERED, bytes=100 * 2**20)),
            ("other shards", each(GATHERED, target=("S1",))),
            ("partial", each(GATHERED, source=("P",))),
            ("few", GATHERED[:2]),
            ("inside torch", each(GATHERED, **VIA)),
        ),
        *unless(
            "implied again",
            ("another mesh", numbered(USED_THREE_TIMES, "mesh")),
            ("other tensors", numbered(USED_THREE_TIMES, "tensor_number")),
            ("unknown tensors", [implied(place=replace(TRAIN, line=line)) for line in (7, 8)]),
            ("another target", last(USED_THREE_TIMES[:2], target=("S1",))),
            ("in backward", each(USED_THREE_TIMES, place=backward(TRAIN))),
            ("nothing sent", each(USED_THREE_TIMES, bytes=0)),
            ("inside torch", each(USED_THREE_TIMES, **VIA)),
        ),
        *unless(
            "implied",
            ("a result of the step", [implied(1, is_lasting=False)]),
            ("used twice", [implied(1, uses=2)]),
            ("one layer uses it twice", [implied(1, place=layer(0)), implied(2, place=layer(1), uses=2)]),
            ("one operand", [implied(1, operands=1)]),
            ("no free dimension", each(ONE_OPERAND, free_dims=())),
            ("result used", each(ONE_OPERAND, output_uses=1)),
            ("computed operand of a sort", each(ONE_OPERAND, is_lasting=False)),
            ("partial", [implied(1, source=("P",))]),
            ("in backward", [implied(1, place=backward(TRAIN))]),
            ("nothing sent", [implied(1, bytes=0)]),
            ("inside torch", [implied(1, **VIA)]),
        ),
        *unless(
            "flattened mesh",
            ("uneven shards", each(UNMERGED, is_even=False)),
            ("one all_reduce", each(UNMERGED, mergeable=0)),
        ),
        *unless(
            "numbers",
            ("another reduction", last(NUMBERS_SENT, reduction="max")),
            ("unknown reductions", each(NUMBERS_SENT, reduction="")),
            ("another group", last(NUMBERS_SENT, group="0,2")),
            ("another mesh dimension", last(NUMBERS_SENT, mesh_dim="tp")),
            ("another dtype", last(NUMBERS_SENT, dtype="f64")),
            ("each after the one before", numbered(NUMBERS_SENT, "depth")),
            ("another phase", last(NUMBERS_SENT, place=OPTIMIZER)),
            ("many numbers", each(NUMBERS_SENT, bytes=4096)),
            ("another collective", each(NUMBERS_SENT, kind="broadcast")),
            ("of redistributions", each(NUMBERS_SENT, is_redistributing=True)),
            ("of FSDP", each(NUMBERS_SENT, fsdp_group=1)),
            ("inside torch", each(NUMBERS_SENT, **VIA)),
            ("few", NUMBERS_SENT[:2]),
        ),
        *unless(
            "norms",
            ("another mesh", numbered(NORMS, "mesh")),
            ("other reductions", [*NORMS[:2], *each(NORMS[2:4], source=("Pmax",))]),
            ("other dtypes", [*NORMS[:2], *each(NORMS[2:4], tensor="f64[]")]),
            ("each after the one before", numbered(NORMS, "depth")),
            ("one tensor", each(NORMS, tensor_number=1, op="mul.Tensor")),
            ("other phases", [*NORMS[:2], *each(NORMS[2:4], place=TRAIN)]),
            ("still partial", each(NORMS, source=("P", "P"), target=("R", "P"))),
            ("many numbers", each(NORMS, tensor="f32[64]")),
            ("inside torch", each(NORMS, **VIA)),
            ("few", NORMS[:2]),
        ),
        *unless(
            "loading",
            ("no distribute_tensor", [SCATTERED[0], SCATTERED[2]]),
            ("another line", [ran("scatter", line=8), SCATTERED[1], ran("scatter", line=8)]),
            ("nothing sent", [SCATTERED[1]] * 2),
            ("one", SCATTERED[:2]),
            ("another collective", [ran("all_gather"), SCATTERED[1], ran("all_gather")]),
            ("inside torch", each(SCATTERED, **VIA)),
        ),
        *unless(
            "reads",
            ("each after the one before", numbered(READS, "depth")),
            ("of many numbers", each(READS, op="tolist")),
            ("inside torch", each(READS, **VIA)),
            ("one", READS[:1]),
        ),
        *unless("partial reads", ("complete", READS)),
        *unless(
            "wraps",
            ("other tensors", numbered(WRAPS, "tensor_number")),
            ("unknown tensors", each(WRAPS, tensor_number=0)),
            ("another placement", last(WRAPS[:2], placements=("S0",))),
            ("another mesh", last(WRAPS[:2], mesh=2)),
            ("another global shape", last(WRAPS[:2], tensor="f32[7]")),
            ("another conversion", last(WRAPS[:2], name="distribute_tensor")),
            ("another phase", last(WRAPS[:2], place=OPTIMIZER)),
            ("inside torch", each(WRAPS, **VIA)),
        ),
        *unless(
            "parameters",
            ("no parameter", each(PARAMETERS, is_parameter=False)),
            ("in backward", each(PARAMETERS, tensor_number=0)),
            ("inside torch", each(PARAMETERS, **VIA)),
        ),
        *unless(
            "gradients",
            ("other tensors", numbered(GRADIENT, "tensor_number")),
            ("no gradient", each(GRADIENT, is_gradient=False)),
            ("not partial", each(GRADIENT, source=("S0",))),
            ("outside of optimizers", each(GRADIENT, place=TRAIN)),
        ),
        *unless(
            "matrices",
            ("once each", MATRICES[:2]),
            ("the same two", [*MATRICES[:2]] * 3),
            ("other shards", each(MATRICES, target=("S1",))),
            ("vectors", each(MATRICES, tensor="f32[8]")),
            ("of no optimizer", each(MATRICES, matrices=0)),
            ("nothing sent", each(MATRICES, bytes=0)),
        ),
        *unless(
            "logits",
            ("few bytes", each(LOGITS, bytes=8)),
            ("no cross entropy", each(LOGITS, is_for_loss=False)),
            ("another loss that refuses it", [*LOGITS, *each(LOGITS, is_for_loss=False)]),
            ("sharded by sample", each(LOGITS, source=("S0",))),
            ("two mesh dimensions", each(LOGITS, source=("S0", "S1"), target=("S0", "R"))),
            ("other shards", each(LOGITS, op="redistribute", target=("S0",))),
        ),
    ],
)
def test_precondition_of_a_rule(name: str, events: list[AnyEvent]) -> None:
    assert [one.change for one in found(*events) if one.rule == name and one.change] == []


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        (SHARED, "repeated"),
        (PAIR, "there and back"),
        (NORM_WEIGHTS, "replicated weights"),
        (USED_THREE_TIMES, "implied again"),
        ([implied(1)], "implied"),
        (WRAPS, "wraps"),
    ],
)
def test_unproved_finding_is_a_fact(events: list[AnyEvent], rule: str) -> None:
    [advice] = found(*events, is_recorded=False)
    assert (advice.rule, advice.change, advice.count, advice.saving) == (rule, "", 0, "")
    assert advice.lines == (advice.seen,)


@pytest.mark.parametrize("events", [GATHERED, NUMBERS_SENT, NORMS, SCATTERED, READS])
def test_independence_is_unknown_without_a_recorded_step(events: list[AnyEvent]) -> None:
    assert rules(*events, is_recorded=False) == []


def test_recorded_step_with_other_events_proves_nothing() -> None:
    counted = StepCounts(events=tuple(SHARED))
    recorded = StepCounts(events=(miss(), *SHARED), is_recorded=True)
    assert [one.count for one in advise([counted], recorded)] == [2]
    for other in (recorded.events[:-1], (*recorded.events[:-1], moved(TRAIN, 1, target=("S1",)))):
        assert [one.count for one in advise([counted], replace(recorded, events=other))] == [0]


@pytest.mark.parametrize("events", [READS, GATHERED, PARAMETERS])
def test_single_step_shows_no_recurrence(events: list[AnyEvent]) -> None:
    assert rules(*events, steps=1) == []


def test_temporary_tensors_get_no_bucket_advice() -> None:
    """The memory of each step is another."""
    steps = [StepCounts(events=tuple(numbered(GATHERED, "memory_number", 10**step))) for step in range(3)]
    assert not advise(steps, replace(steps[-1], is_recorded=True))


CALLS = [calls()]


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (calls(), [("lists", 3)]),
        (calls(3), []),
        (calls(is_alike=False), []),
        (calls(is_independent=False), []),
        (calls(replacement=""), []),
        (calls(tensors=3), []),
        (calls(**VIA), []),
        (calls(place=backward(TRAIN)), []),
        (calls(op="select.int", tensors=1, replacement="unbind()"), [("unbind", 3)]),
        (calls(op="select.int", tensors=2, replacement="unbind()"), []),
        (calls(op="select.int", tensors=4, replacement="unbind()"), []),
        (calls(tensors=1), []),
        (calls(op="select.int", tensors=1, replacement="unbind()", **VIA), []),
        (calls(op="narrow.default", tensors=1, replacement=""), []),
    ],
    ids=str,
)
def test_calls_in_a_loop(called: OpCalls, expected: list[tuple[str, int]]) -> None:
    assert rules(ops=[called]) == expected


def test_ops_of_one_loop_are_one_finding() -> None:
    decay, add = calls(8), calls(8, "add_.Tensor", replacement="torch._foreach_add_")
    [advice] = found(ops=[decay, add, calls(op="zero_.default", replacement="torch._foreach_zero_", count=3)])
    assert (advice.count, advice.kind) == (14, AdviceKind.CPU_TIME)
    cells = [spent(TRAIN, 80, Part.DISPATCH, "mul_"), spent(TRAIN, 20, Part.DISPATCH, "mm")]
    [advice] = found(ops=[decay], cells=cells)
    assert advice.ns == pytest.approx(80 * US)


@pytest.mark.parametrize(
    ("mesh", "steps", "expected"),
    [
        ((4, 1), 3, [("dimensions of size 1", 1)]),
        ((4,), 3, []),
        ((4, 2), 3, []),
        ((1,), 3, []),
        ((4, 1), 1, [("dimensions of size 1", 1)]),
    ],
)
def test_misses_on_a_dimension_of_size_one(
    mesh: tuple[int, ...], steps: int, expected: list[tuple[str, int]]
) -> None:
    assert rules(miss(mesh=mesh), steps=steps) == expected
    step = StepCounts(events=(miss(mesh=mesh),))
    assert advise([StepCounts(), step]) == (), "a step without misses"


def test_gathers_of_uneven_shards_pad_them() -> None:
    even, uneven = found(*GATHERED), found(*each(GATHERED, is_even=False))
    assert ["pad" in one.change for one in (*even, *uneven)] == [False, True]
    assert [one.count for one in uneven] == [5]
    mixed = [*GATHERED, *each([gathered(number) for number in range(11, 17)], is_even=False)]
    assert rules(*mixed) == [("loops", 5)] * 2


def test_gathers_need_one_bucket_for_each_dtype_and_size() -> None:
    two_types = [*GATHERED[:2], *each(GATHERED[2:4], tensor="bf16[8]")]
    assert rules(*two_types) == [("loops", 2)]
    assert rules(*each(GATHERED, bytes=10 * 2**20)) == [("loops", 3)], "60 MiB need 3 buckets"
    cells = [spent(TRAIN, 600), spent(TRAIN, 400, Part.LOCAL, "mm")]
    assert saved(*GATHERED, cells=cells) == [("loops", 5, 0, 500)]


def test_placement_of_a_single_operand_is_another_dimension() -> None:
    [other], [whole] = found(*ONE_OPERAND), found(implied(1))
    assert "shard dimension 1 " in other.change
    assert whole.change == "create the f32[64,64] as R, not S0"


def test_repeated_redistribution_in_each_layer_is_one_finding() -> None:
    lines = [layer(number, f"attention.{name}") for number in range(2) for name in ("wq", "wk", "wv")]
    forward = [moved(place, 1 + node // 3, node=node) for node, place in enumerate(lines)]
    back: Any = {"source": ("P",), "target": ("S0",)}
    of_gradients = [moved(backward(place), node=node, **back) for node, place in enumerate(lines)]
    cells = [*(spent(place, 100) for place in lines), *(spent(backward(place), 50) for place in lines)]
    [advice] = found(*forward, *of_gradients, cells=cells)
    assert advice.seen.endswith("3 times in each of 2 places, at model.py:16 (forward, layers.*.attention)")
    # 8 of 12 redistributions are saved; a third of the time remains.
    assert (advice.rule, advice.count, advice.kind) == ("repeated", 8, AdviceKind.COMMUNICATION)
    assert advice.ns == pytest.approx(600 * US)
    assert advice.share == pytest.approx(2 / 3)


def test_pair_around_elementwise_ops_runs_them_on_shards() -> None:
    [direct], [around] = found(*PAIR), found(*PAIR_AROUND_OPS)
    assert direct.change == "use the tensor that it was before"
    assert around.change.startswith("run these ops")
    assert [(one.count, one.bytes) for one in (direct, around)] == [(2, 16_384)] * 2


def test_redistribution_belongs_to_one_pair() -> None:
    there, back = PAIR_AROUND_OPS
    in_turn = [there, back, replace(there, undoes=(1,)), replace(back, undoes=(2,))]
    assert rules(*in_turn) == [("needless pair", 4)]


def test_gathers_with_return_are_promised_once() -> None:
    pairs = [
        (gathered(one), moved(TRAIN, one + 100, source=("R",), target=("S0",), undoes=(2 * one - 2,)))
        for one in range(1, 5)
    ]
    assert saved(*chain(*pairs)) == [("there and back", 8, 65_536, 0)]


def test_implied_redistribution_saves_its_share_of_its_line() -> None:
    twice = [implied(number, place=layer(number)) for number in range(1, 3)]
    other = implied(3, "add.Tensor", place=layer(1), target=("S1",))
    cells = [spent(layer(1), 100, op="mm"), spent(layer(2), 60, op="mm"), spent(layer(1), 40)]
    assert saved(*twice, other, cells=cells) == [("implied", 2, 16_384, 110), ("implied", 1, 8_192, 50)]
    again = [implied(1, uses=3)] * 3
    assert saved(*again, cells=[spent(TRAIN, 90, op="mm")]) == [("implied again", 2, 16_384, 60)]


def test_matrices_of_an_optimizer_are_gathered_once() -> None:
    twelve = [implied(number, place=OPTIMIZER, matrices=2) for number in range(1, 25)]
    products = each(twelve[:6], source=("P",), target=("S0",))
    norms = each(twelve[:3], op="clamp", tensor="f32[]", source=("P",), bytes=4)
    cells = [spent(OPTIMIZER, 330, op="mm")]
    every = saved(*twelve, *products, *norms, cells=cells)
    assert every == [("matrices", 31, 28 * 8_192 + 3 * 4, 310)]


def test_conversions_save_their_cells() -> None:
    cells = [
        spent(TRAIN, 60, Part.WRAPPING, "from_local"),
        spent(backward(TRAIN), 20, Part.WRAPPING, "from_local"),
    ]
    assert saved(*WRAPS, cells=cells) == [("wraps", 3, 0, 60)]
    again = each(WRAPS[:2], place=backward(TRAIN))  # of a recomputed forward
    cells = [spent(backward(TRAIN), 20, Part.WRAPPING, "from_local"), spent(TRAIN, 80, Part.LOCAL, "mm")]
    assert saved(*again, cells=cells) == [("wraps", 1, 0, 10)]


def test_gradients_of_repeated_wraps_are_redistributed_as_often() -> None:
    lines = [*enumerate(layer(0, name) for name in ("wq", "wk", "wv"))]
    wraps = [wrap(1, place, node=node) for node, place in lines]
    back: Any = {"source": ("P",), "target": ("R",)}
    moves = [moved(backward(place), node=node, **back) for node, place in lines]
    cells = [spent(one.place or TRAIN, 100) for one in moves]
    [advice] = found(*wraps, *moves, cells=cells)
    assert "2 redistributions and 2 calls of from_local" in advice.saves
    assert advice.ns == pytest.approx(200 * US)
    # The gradient may be that of another conversion.
    others = [replace(one, node=10) for one in moves]
    assert "redistribution" not in found(*wraps, *others)[0].saves


def test_gradients_of_later_backwards_are_not_saved() -> None:
    """All micro-batches can share the first result, but each backward redistributes its own gradient."""
    forward = [moved(TRAIN, 1, node=node) for node in range(3)]
    back: Any = {"source": ("P",), "target": ("S0",)}
    gradients = [moved(backward(TRAIN), node=node, **back) for node in range(3)]
    cells = [spent(TRAIN, 300), spent(backward(TRAIN), 300)]
    in_turn = [each([forward[number], gradients[number]], after=number) for number in range(3)]
    assert saved(*chain(*in_turn), cells=cells) == [("repeated", 2, 16_384, 200)]
    assert saved(*forward, *gradients, cells=cells) == [("repeated", 4, 32_768, 400)]


def test_recomputation_is_promised_once() -> None:
    """Two wraps in forward and two in the recomputation, whose gradients are redistributed."""
    lines = [*enumerate(layer(0, name) for name in ("wq", "wk"))]
    wraps = [wrap(1, place) for _, place in lines]
    again = [wrap(1, backward(place), node=node) for node, place in lines]
    moves = [moved(backward(place), node=node, source=("P",), target=("R",)) for node, place in lines]
    [advice] = found(*wraps, *again, *moves, cells=[spent(one.place or TRAIN, 100) for one in moves])
    assert "1 redistribution and 2 calls of from_local" in advice.saves


def miss(op: str = "mm.default", reason: str = "first call of this op", cause: str = "", **more: Any) -> Miss:
    call = f"{op}(f32[8]S0)@4"
    return Miss(call, reason, QueriedCache.NATIVE, cause or reason, **{"place": TRAIN, **more})


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("value of max", Remedy.NUMBER),
        ("shape of self", Remedy.SHAPE),
        ("an equal call missed before: its plan is not cached", Remedy.UNCACHED),
        ("first call of this op in this thread; caches are per thread", Remedy.THREAD),
    ],
)
def test_recurring_misses_have_advice(cause: str, remedy: Remedy) -> None:
    cells = [spent(TRAIN, 900, Part.PROPAGATION, "clamp"), spent(TRAIN, 100, Part.LOCAL, "clamp")]
    event = miss("clamp.default", f"{cause} 3, was 2", cause, remedy=remedy)
    [advice] = found(event, cells=cells)
    assert (advice.rule, advice.count) == ("misses", 1)
    assert advice.ns == 900 * US
    assert (advice.change, advice.seen.rpartition(", ")[2]) == (remedy, "was 2")


def test_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "advice.md").read_text()
    table = page.partition("| rule | pattern |")[2].partition("\n\n")[0]
    names = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert sorted(names) == sorted(rule.name for rule in RULES)


def test_single_or_unfixable_misses_have_no_advice() -> None:
    once = miss("mm.default", "first call of this op", "first call of this op")
    recurring = miss("mm.default", "shape of self", "shape of self", remedy=Remedy.SHAPE)
    inside_torch = miss(
        "lerp_.Scalar", "value of weight", "value of weight", place=OPTIMIZER, remedy=Remedy.NUMBER
    )
    assert found(replace(inside_torch, is_direct=False)) == ()
    elsewhere = miss("mm.default", "shape of self at another position", "shape of self at another position")
    assert found(once) == found(elsewhere) == ()
    assert advise([StepCounts(), StepCounts(events=(recurring,))]) == ()


def test_misses_without_a_line_have_a_cost() -> None:
    cell = replace(spent(TRAIN, 900, Part.PROPAGATION, "clamp"), place=None)
    event = miss("clamp", "value of max", "value of max", remedy=Remedy.NUMBER)
    budget = Budget("step", 1_000 * US, (cell,))
    [advice] = advise([StepCounts(events=(event,))] * 2, None, budget)
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
    assert advise([StepCounts(dtensor_growth=-1)] * 3) == ()


def test_avoiding_new_plans_saves_their_misses() -> None:
    first = miss("slice.Tensor", "value of start", "value of start")
    step = StepCounts(events=(first,), cache_growth=(("native", 1), ("FakeTensor", 2)))
    budget = Budget("step", 1_000 * US, (spent(TRAIN, 900, Part.PROPAGATION, "slice"),))
    [advice] = advise([step] * 2, None, budget)
    seen = "2 cached plans more after each step, as of slice.Tensor at train.py:7 (forward), value of start"
    assert (advice.seen, advice.change) == (seen, "pass equal arguments in each step")
    assert (advice.saves, advice.kind) == ("saves at most 1 miss", AdviceKind.CPU_TIME)
    assert (advice.count, advice.ns, advice.source_lines) == (1, 900 * US, ("train.py:7",))
    assert advise([step, replace(step, cache_growth=(("FakeTensor", 1),))]) == ()  # the growth may end


ADAMW = OptimizerStep("AdamW", FUSED, has_plain=False, is_partial=False)
BY_LISTS = ADAMW._replace(name="Adamax", option=FOREACH)
STEP_CALLS = calls(8, "mul_.Tensor", place=OPTIMIZER, via="step")


def optimizer_cells(*ops: str, calls: float = 8) -> list[Cell]:
    cells = [Cell(Part.DISPATCH, op, OPTIMIZER, 50 * US, calls) for op in ops]
    return [
        *cells,
        Cell(Part.OTHER, "", OPTIMIZER, 10 * US, 1),
        Cell(Part.LOCAL, ops[0], OPTIMIZER, 20 * US, 0),
        Cell(Part.LOCAL, "mm", TRAIN, 20 * US, 1),
    ]


@pytest.mark.parametrize(
    ("op", "optimizer", "count", "us", "words"),
    [
        ("mul_", ADAMW, 7, 60, "pass fused=True to AdamW"),
        # Dispatching one fused op over all lists costs the same as several ops over parts of them.
        ("_foreach_mul_", ADAMW, 7, 10, "in place of foreach"),
        ("mul_", ADAMW._replace(has_plain=True), 7, 60, "plain parameters an optimizer of their own"),
        ("mul_", ADAMW._replace(takes_meshes=False), 7, 60, "one optimizer for each mesh"),
        ("mul_", BY_LISTS, 7, 50 * 7 / 8, "pass foreach=True to Adamax"),
        # Two lists, as of two dtypes. Each of four tensors needs two ops.
        ("mul_", ADAMW._replace(tensors=4, lists=2), 6, 60, "pass fused=True to AdamW"),
        ("mul_", BY_LISTS._replace(tensors=4, lists=2), 4, 50 * 4 / 8, "pass foreach=True to Adamax"),
    ],
)
def test_optimizer_over_dtensors(
    op: str, optimizer: OptimizerStep, count: int, us: float, words: str
) -> None:
    [advice] = found(cells=optimizer_cells(op), optimizer=optimizer)
    assert (advice.rule, advice.count) == ("optimizer", count)
    assert advice.ns == pytest.approx(us * US)
    assert words in advice.change


def test_optimizer_of_a_recorded_step_needs_no_budget() -> None:
    assert rules(ops=[STEP_CALLS], optimizer=ADAMW) == [("optimizer", 7)]
    assert rules(ops=[replace(STEP_CALLS, via="")], optimizer=ADAMW) == [("lists", 7)]
    step = StepCounts(is_recorded=True, ops=(STEP_CALLS,), optimizers=(ADAMW,))
    assert [one.rule for one in advise([StepCounts()] * 2, step)] == ["optimizer"]
    two = replace(step, optimizers=(ADAMW, BY_LISTS))
    assert advise([StepCounts()] * 2, two) == ()


@pytest.mark.parametrize(
    ("hits", "saved"), [(10, STEP_CALLS.count - 3), (8 + STEP_CALLS.count, STEP_CALLS.count - 1)]
)
def test_ops_that_create_state_are_not_saved(hits: int, saved: int) -> None:
    """More additional calls than those of the optimizer are of another part of the first step."""
    first = StepCounts(is_recorded=True, ops=(STEP_CALLS,), optimizers=(ADAMW,), hits=hits)
    [advice] = advise([replace(first, ops=(), hits=8)] * 2, first)
    assert (advice.rule, advice.count) == ("optimizer", saved)


@pytest.mark.parametrize(
    ("cells", "optimizer"),
    [
        (optimizer_cells("_fused_adamw_", "mul_"), ADAMW),
        (optimizer_cells("mul_", calls=1), ADAMW),
        (optimizer_cells("mul_"), None),
        (optimizer_cells("mul_"), ADAMW._replace(option="")),
        (optimizer_cells("mul_"), ADAMW._replace(is_partial=True)),
        (optimizer_cells("_foreach_mul_"), BY_LISTS),
        (optimizer_cells("mul_"), BY_LISTS._replace(tensors=2, lists=2)),
    ],
    ids=["fused", "one call", "not torch's", "no rule", "partial gradients", "by lists", "a list each"],
)
def test_optimizers_without_advice(cells: list[Cell], optimizer: OptimizerStep | None) -> None:
    assert found(cells=cells, optimizer=optimizer) == ()


@pytest.mark.parametrize(("is_clipped", "count"), [(False, 4), (True, 2)])
def test_clipping_redistributes_norms_of_replicated_gradients(is_clipped: bool, count: int) -> None:
    weights = [replace(weight, node=number) for number, weight in enumerate(NORM_WEIGHTS)]
    shards: dict[str, Any] = {"source": ("R",), "target": ("S0",), "bytes": 0}
    gradients = [moved(backward(layer(0, "norm")), node=number, **shards) for number in range(2)]
    norm = moved(replace(TRAIN, phase=Phase.CLIPPING), source=("P",), tensor="f32[]", op="add.Tensor")
    every = [*weights, *gradients, *([norm] if is_clipped else [])]
    assert [one.count for one in found(*every) if one.change] == [count]


def pointwise(module: str = "norm", **changes: Any) -> OpCalls:
    return calls(60, "mul.Tensor", **{"place": layer(0, module), "replacement": "", **changes})


def module_cells(*extra: Cell, local_us: float = 10.0, ops: str = "mul", calls: float = 60) -> list[Cell]:
    place = layer(0, "norm")
    return [
        Cell(Part.DISPATCH, ops, place, 80 * US, calls),
        Cell(Part.AUTOGRAD, "MulBackward0", backward(place), 20 * US, 0),
        Cell(Part.LOCAL, ops, place, local_us * US, 0),
        *extra,
    ]


def test_elementwise_module_dominated_by_dispatch_gets_local_map() -> None:
    # Six conversions cost as much as twelve of 60 ops; the time of autograd is not saved.
    assert saved(cells=module_cells(), ops=[pointwise()]) == [("modules", 48, 0, 64)]


@pytest.mark.parametrize(
    ("cells", "op"),
    [
        (module_cells(local_us=40), pointwise()),
        (module_cells(calls=12), pointwise()),
        (module_cells(), pointwise(is_pointwise=False)),
        (module_cells(spent(layer(0, "norm"), 1)), pointwise()),
        (module_cells(spent(layer(0, "norm"), 1, Part.WRAPPING, "to_local")), pointwise()),
    ],
    ids=["large shards", "few ops", "a product", "redistributes", "on local tensors already"],
)
def test_modules_without_advice(cells: list[Cell], op: OpCalls) -> None:
    assert found(cells=cells, ops=[op]) == ()
    assert found(cells=module_cells()) == (), "ops were not recorded"


@pytest.mark.parametrize(
    ("module", "inner", "is_advised"),
    [
        ("layers.0.norm", "layers.0.norm.scale", False),
        ("layers.0.norm", "layers.0.norms", True),
        ("Norm", "scale", False),
        ("Norm", "0.scale", False),
        ("Norm", "", True),
        ("Norm", "Other", True),
    ],
)
def test_module_with_products_in_a_submodule_gets_no_local_map(
    module: str, inner: str, is_advised: bool
) -> None:
    own = [(cell, cell.place or TRAIN) for cell in module_cells()]
    cells = [replace(cell, place=replace(place, module=module)) for cell, place in own]
    product = calls(1, "mm.default", place=replace(TRAIN, module=inner), is_pointwise=False, replacement="")
    ops = [pointwise(place=replace(TRAIN, module=module)), product]
    assert bool(found(cells=cells, ops=ops)) is is_advised


def test_findings_are_sorted_and_limited_by_class() -> None:
    lines = [replace(TRAIN, line=line) for line in range(12)]
    sizes: list[Any] = [{"place": place, "bytes": 100 * place.line + 8} for place in lines]
    proved = [implied(20 + number, f"op{number}", **size) for number, size in enumerate(sizes)]
    facts = [implied(op=f"other{number}", uses=2, **size) for number, size in enumerate(sizes)]
    wraps = [wrap(number, place) for number, place in enumerate(lines, 1) for _ in range(number + 1)]
    reads = [read(7), PARTIAL, read(9)]
    every = found(*facts, *proved, *wraps, *reads)
    assert [(one.kind, bool(one.change)) for one in every] == [
        (AdviceKind.WAITS, True),
        *[(AdviceKind.CPU_TIME, True)] * 10,
        *[(AdviceKind.COMMUNICATION, True)] * 10,
        (AdviceKind.WAITS, True),
        *[(AdviceKind.COMMUNICATION, False)] * 10,
    ]
    assert every[0].rule == "partial reads"
    assert [one.count for one in every[1:4]] == [12, 11, 10]
    assert [one.bytes for one in every[11:14]] == [1108, 1008, 908]


def test_budget_omits_no_finding_of_counts() -> None:
    large = spent(TRAIN, 5_000, Part.LOCAL, "mm")
    events: list[AnyEvent] = [*WRAPS, implied(1), *READS]
    in_counts = [one.rule for one in found(*events)]
    assert in_counts == ["wraps", "implied", "reads"]
    assert [one.rule for one in found(*events, cells=[large])] == in_counts
    few = spent(TRAIN, 20, Part.WRAPPING, "from_local"), spent(TRAIN, 20, op="mm")
    assert [one.rule for one in found(*events, cells=[large, *few])] == in_counts


def test_redistribution_without_bytes_saves_cpu_time() -> None:
    cut = [moved(TRAIN, 1, source=("R",), target=("S0",), bytes=0)] * 3
    [advice] = found(*cut, cells=[spent(TRAIN, 300)])
    assert (advice.kind, advice.count) == (AdviceKind.CPU_TIME, 2)
    assert advice.ns == pytest.approx(200 * US)


def test_advice_never_promises_more_than_the_step() -> None:
    budget = Budget("step", 60 * US, (spent(TRAIN, 90, op="add"),))
    [advice] = advise([StepCounts(events=(moved(TRAIN, op="add"),))], None, budget)
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
    operands=NUMBERS,
    memory_number=NUMBERS,
    mesh=NUMBERS,
    mergeable=NUMBERS,
    is_parameter=st.booleans(),
    is_lasting=st.booleans(),
    uses=NUMBERS,
    depth=NUMBERS,
    after=NUMBERS,
    via=st.sampled_from(["", "", "step"]),
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
    lambda cause, place, remedy: miss("mm.default", cause, cause, place=place, remedy=remedy),
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


@given(st.lists(STEPS, max_size=4), st.lists(CELLS, max_size=8), st.floats(0, 1e6), st.booleans())
def test_arbitrary_events_have_valid_advice(
    steps: list[StepCounts], cells: list[Cell], step_ns: float, is_recorded: bool
) -> None:
    recorded = replace(steps[-1], is_recorded=is_recorded) if steps else None
    every = advise(steps, recorded, Budget("step", step_ns, tuple(cells)))
    classes = Counter((one.kind, bool(one.change)) for one in every)
    assert max(classes.values(), default=0) <= MAX_FINDINGS
    assert all(one.lines and one.rule and bool(one.change) == (one.count >= 1) for one in every)
    assert all(0 <= one.share <= 1 for one in every if step_ns)


def test_written_result_is_not_shared() -> None:
    first, again = gathered(1), gathered(1)
    assert rules(first, again) == [("repeated", 1)]
    assert rules(first, replace(again, is_result_unique=True)) == [("repeated", 0)]


def test_plan_that_redistributes_an_argument_again_can_prepare_it() -> None:
    first, again = (
        gathered(1, input=5, via="_prepare_input_fn"),
        gathered(1, input=5, via="_prepare_input_fn"),
    )
    [one_module] = found(first, again)
    assert one_module.change == CONVERT_ONCE
    [two_modules] = found(first, replace(again, input=6))
    assert (two_modules.change, two_modules.count) == ("redistribute it once before", 1)


def test_saving_of_a_third_precedes_other_classes() -> None:
    shares = {AdviceKind.CPU_TIME: 0.06, AdviceKind.COMMUNICATION: 0.53}
    cpu, sent = (
        Advice("seen", "change", "", 1, share * 1e6, share, kind=kind) for kind, share in shares.items()
    )
    assert sorted([cpu, sent], key=attrgetter("order")) == [sent, cpu]
    smaller = replace(sent, share=0.2)
    assert sorted([smaller, cpu], key=attrgetter("order")) == [cpu, smaller]
