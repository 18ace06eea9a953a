"""Each rule on a program that it targets, and on a similar one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.advice import advise, with_advice
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.steps.events import Collective, Redistribution, Remedy, StepEvent, Wrapping
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, Steps
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from tests.advice import programs
from tests.advice.programs import Step
from tests.probes import FSDP_WITHOUT_CUDA, needs, needs_rule, plans_again

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

Program = Callable[[DeviceMesh], Step]


COUNTED: dict[Program, Steps] = {}


def steps_of(program: Program, mesh: DeviceMesh) -> Steps:
    """Count steps of a program: once, although several tests need them."""
    if program not in COUNTED:
        COUNTED[program] = run_and_count(StepCalls("step", program(mesh), 3, 3))
    return COUNTED[program]


def advice_of(steps: Steps) -> tuple[Advice, ...]:
    return advise(steps.steps, steps.warmup[-1])


def budget_of(step: Step, warmup: int, steps: int) -> Budget:
    return with_advice(run_and_measure_budget(step, warmup, steps, "step"))


def changes(program: Program, mesh: DeviceMesh) -> list[tuple[str, int]]:
    """Return the rule and the number of each suggested change, except another option of an optimizer."""
    every = advice_of(steps_of(program, mesh))
    return [(one.rule, one.count) for one in every if one.change and one.rule != "optimizer"]


FIRES: dict[Program, list[tuple[str, int]]] = {
    programs.redistributed_three_times: [("inputs", 12)],
    programs.there_and_back: [("there and back", 2)],
    programs.there_and_back_after_an_op: [("needless pair", 2)],
    programs.results_gathered_one_by_one: [("needless pair", 12)],
    programs.implied: [("implied", 1)],
    programs.norms_one_by_one: [("norms", 5)],
    programs.wrapped_three_times: [("wraps", 2)],
    programs.parameters_wrapped: [("parameters", 4)],
    programs.new_number_each_time: [("misses", 1)],
    programs.new_shape_each_time: [("misses", 1)],
    programs.softmax_across_ranks: [("implied", 1)],
    programs.implied_at_five_lines: [("implied again", 4)],
    programs.implied_for_each_projection: [("implied again", 2)],
    programs.gathered_one_by_one: [("loops", 5)],
    programs.state_dict_gathered: [("loops", 5)],
    programs.small_groups: [("small groups", 21)],
    programs.group_gathered_for_each_chunk: [("repeated gathers", 7)],
    # Since torch 2.15 a softmax shards them by row.
    programs.logits_gathered: [("logits", 1)],
    programs.logits_gathered_by_a_module: [("logits", 1)],
    programs.grown: [("misses", 8)],
    programs.new_size_each_time: [("misses", 1)],
    programs.gradients_reduced_by_each_op: [("gradients", 4)],
    programs.retained: [("growth", 1)],
}
SIMILAR = [
    programs.redistributed_once_before,
    programs.redistributed_after_a_write,
    programs.used_unchanged,
    programs.placed_equally,
    programs.redistributed_explicitly,
    programs.reduced_by_an_op,
    programs.norms_at_once,
    programs.gathered_in_a_bucket,
    programs.several_modules_in_a_group,
    programs.group_gathered_for_all_chunks,
    programs.model_called_twice,
    programs.redistributed_before_projections,
    programs.loss_over_shards,
    programs.results_gathered_for_a_sum,
    programs.wrapped_once,
    programs.others_wrapped,
    programs.parameters_that_are_dtensors,
    programs.inputs_wrapped,
    programs.new_tensor_each_time,
    programs.padded,
    programs.one_number,
    programs.replaced,
    programs.wrapped_with_and_without_grad,
    programs.wrapped_with_another_graph,
    programs.softmax_within_ranks,
    programs.sorted_vector,
    programs.number_inside_torch,
    programs.gradients_reduced_once,
    programs.gradients_scaled_by_hooks,
    programs.implied_beside_a_thread,
    programs.read_in_threads,
]
FSDP, MAXIMUM = needs(FSDP_WITHOUT_CUDA), needs_rule("maximum.default")
OF_FSDP = {
    programs.state_dict_gathered,
    programs.small_groups,
    programs.several_modules_in_a_group,
    programs.group_gathered_for_each_chunk,
    programs.group_gathered_for_all_chunks,
    programs.model_called_twice,
    programs.gradients_scaled_by_hooks,
}
# Programs before and after the advised change, and the kind of events that it saves.
CHANGES: list[Any] = [
    (programs.redistributed_three_times, programs.redistributed_once_before, Redistribution),
    (programs.checkpointed, programs.checkpointed_and_gathered_once, Redistribution),
    (programs.gathered_for_each_batch, programs.gathered_for_all_batches, Redistribution),
    (programs.gradients_reduced_by_each_op, programs.gradients_reduced_once, Redistribution),
    (programs.softmax_across_ranks, programs.softmax_within_ranks, Redistribution),
    (programs.implied_for_each_projection, programs.redistributed_before_projections, Redistribution),
    (programs.gathered_one_by_one, programs.gathered_in_a_bucket, Redistribution),
    (programs.logits_gathered, programs.loss_over_shards, Redistribution),
    pytest.param(programs.small_groups, programs.several_modules_in_a_group, Collective, marks=FSDP),
    pytest.param(
        programs.group_gathered_for_each_chunk, programs.group_gathered_for_all_chunks, Collective, marks=FSDP
    ),
    (programs.wrapped_three_times, programs.wrapped_once, Wrapping),
    (programs.wrapped_for_each_batch, programs.wrapped_for_all_batches, Wrapping),
]


NEEDED: dict[Program, Any] = {
    **dict.fromkeys(OF_FSDP, FSDP),
    programs.implied_at_five_lines: MAXIMUM,
    programs.new_tensor_each_time: needs_rule("clamp.Tensor"),
    programs.sorted_vector: needs_rule("sort.default"),
    programs.norms_at_once: pytest.mark.skipif(
        not hasattr(torch.nn.utils, "get_total_norm"), reason="this torch has no get_total_norm"
    ),
}


def supported(listed: Iterable[Program]) -> list[Any]:
    """Skip programs that this torch cannot run."""
    return [pytest.param(one, marks=NEEDED.get(one, ()), id=one.__name__) for one in listed]


@pytest.mark.parametrize("program", supported(FIRES))
def test_rule_fires(mesh: DeviceMesh, program: Program) -> None:
    clamped = (lambda rows: rows.clamp(max=0.5)), (lambda rows: rows.clamp(max=0.25))
    if program is programs.new_number_each_time and not plans_again(mesh, *clamped):
        pytest.skip("no number is part of the key in this torch")
    expected = FIRES[program]
    if program is programs.logits_gathered:  # newer versions of torch move them to rows first
        expected = [("logits", len(steps_of(program, mesh).steps[-1].redistributions))]
    assert changes(program, mesh) == expected


@pytest.mark.parametrize("program", supported(SIMILAR))
def test_no_rule_fires_on_similar_programs(mesh: DeviceMesh, program: Program) -> None:
    assert changes(program, mesh) == []


NOUN = {Redistribution: "redistribution", Wrapping: "call", Collective: ""}


@pytest.mark.parametrize(("before", "after", "kind"), CHANGES, ids=lambda each: each.__name__)
def test_advised_change_saves_the_promised_count(
    mesh: DeviceMesh, before: Program, after: Program, kind: type[StepEvent]
) -> None:
    steps, changed = steps_of(before, mesh), steps_of(after, mesh)
    [advice] = [one for one in advice_of(steps) if NOUN[kind] in one.saves][:1]
    assert advice.count == len(steps.steps[-1].of(kind)) - len(changed.steps[-1].of(kind))
    assert not [one for one in advice_of(changed) if one.change == advice.change]


@MAXIMUM
def test_one_finding_for_each_cause(mesh: DeviceMesh) -> None:
    """One tensor or number at several lines is one cause; several of them are several causes."""
    assert [one.count for one in advice_of(steps_of(programs.implied_at_five_lines, mesh))] == [4]
    assert [one.count for one in advice_of(steps_of(programs.implied_of_five_tensors, mesh))] == [1] * 5
    assert [one.count for one in advice_of(steps_of(programs.grown, mesh))] == [8]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(programs.new_index_each_time, marks=needs_rule("select.int")),
        pytest.param(programs.number_beside_another, marks=needs_rule("clamp.default")),
        pytest.param(programs.number_without_an_overload, marks=needs_rule("leaky_relu.default")),
    ],
)
def test_number_that_no_tensor_can_replace(mesh: DeviceMesh, program: Program) -> None:
    steps = steps_of(program, mesh)
    assert not any("0-dim" in one.change for one in advice_of(steps))
    assert all(miss.remedy is Remedy.NONE for step in steps.steps for miss in step.missed)


def test_numbers_have_separate_findings(mesh: DeviceMesh) -> None:
    clamped = (lambda rows: rows.clamp(max=0.5)), (lambda rows: rows.clamp(max=0.25))
    if not plans_again(mesh, *clamped):
        pytest.skip("no number is part of the key in this torch")
    assert [one.count for one in advice_of(steps_of(programs.one_number_at_three_lines, mesh))] == [3]
    assert [one.count for one in advice_of(steps_of(programs.three_numbers_at_three_lines, mesh))] == [1] * 3


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_gathers_each_matrix_once(mesh: DeviceMesh) -> None:
    steps = steps_of(programs.matrices_gathered_by_each_product, mesh)
    changed = steps_of(programs.matrices_gathered_once, mesh)
    [advice] = [one for one in advice_of(steps) if "gathered" not in one.seen and "sent" not in one.seen]
    assert advice.change.startswith("gather each matrix once")
    moves = [sum(bool(one.bytes) for one in each.steps[-1].redistributions) for each in (steps, changed)]
    assert advice.count == moves[0] - moves[1]
    assert not [one for one in advice_of(changed) if one.change == advice.change]


@pytest.mark.parametrize(
    "program", [programs.projected_gradients, programs.logits_of_few_bytes], ids=lambda each: each.__name__
)
def test_implied_gathers_that_no_other_rule_avoids(mesh: DeviceMesh, program: Program) -> None:
    assert {"matrices", "logits"}.isdisjoint(dict(changes(program, mesh)))


FUSED = "fused=True"


@pytest.mark.parametrize(
    ("name", "has_plain"), [("Adam", True), ("AdamW", False), ("SGD", True), ("Adagrad", False)]
)
def test_budget_advises_a_fused_optimizer(mesh: DeviceMesh, name: str, has_plain: bool) -> None:
    """The advised change works, with one optimizer for plain parameters."""
    make = getattr(torch.optim, name)
    every = programs.mixed_parameters(mesh)
    used = every if has_plain else every[:4]
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9} if name == "SGD" else {"lr": 0.1}
    step = make(used, foreach=False, **options).step
    [change] = [one.change for one in budget_of(step, 2, 2).advice if one.rule == "optimizer"]
    option = "fused" if f"_fused_{name.lower()}_.default" in ops_with_a_rule() else "foreach"
    assert change.startswith(f"pass {option}=True to {name}")
    assert ("plain parameters" in change) is has_plain
    for parameters in (every[:4], every[4:]):
        make(parameters, **{option: True}, **options).step()


def test_fused_optimizer_has_no_advice(mesh: DeviceMesh) -> None:
    budget = budget_of(programs.adamw_fused(mesh), 2, 2)
    assert not [one for one in budget.advice if FUSED in one.change]


def test_foreach_optimizer_is_advised_to_drop_foreach(mesh: DeviceMesh) -> None:
    """Torch raises with both foreach=True and fused=True."""
    budget = budget_of(programs.adamw_by_lists(mesh), 2, 2)
    assert "pass fused=True to AdamW in place of foreach" in [one.change for one in budget.advice]


def test_budget_has_advice_from_its_counts(mesh: DeviceMesh) -> None:
    [advice] = budget_of(programs.implied(mesh), 3, 4).advice
    assert "implied by add.Tensor" in advice.seen
    assert 0 < advice.share <= 1
