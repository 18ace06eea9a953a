"""Each rule on a program that it targets, and on a similar one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.advice import MIXED, advise, with_advice
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.steps.events import Collective, Redistribution, Remedy, StepEvent, Wrapping
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, StepCounts
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from tests.advice import programs
from tests.advice.programs import Step
from tests.probes import FSDP_WITHOUT_CUDA, needs, needs_rule, plans_again

pytestmark = pytest.mark.torch

Program = Callable[[DeviceMesh], Step]


def steps_of(program: Program, mesh: DeviceMesh) -> tuple[StepCounts, ...]:
    return run_and_count(StepCalls("step", program(mesh), 3, 3)).steps


def budget_of(step: Step, warmup: int, steps: int) -> Budget:
    return with_advice(run_and_measure_budget(step, warmup, steps, "step"))


def counted(program: Program, mesh: DeviceMesh) -> list[str]:
    return [" ".join(one.lines) for one in advise(steps_of(program, mesh))]


FIRES: dict[Program, str] = {
    programs.redistributed_three_times: "S0 -> R redistributed 3 times in each of 3 places, at *: "
    "redistribute it once before*saves at most 12 redistributions*",
    programs.there_and_back: "f32[[]64,64] S0 -> R -> S0 redistributed there and back at *",
    programs.implied: "f32[[]64,64] S1 -> S0 implied by add.Tensor at *: make it S0, *",
    programs.norms_one_by_one: "6 partial results of one number reduced one by one at *5 collectives*",
    programs.wrapped_three_times: "f32[[]256,64] S0 given to from_local 3 times at *2 calls of from_local*",
    programs.parameters_wrapped: "4 parameters given to from_local in each step at *4 calls of from_local*",
    programs.new_number_each_time: "clamp missed in each step at *value of max*: give the number as a*",
    programs.new_shape_each_time: "mul missed in each step at *shape of self*: pad to a few sizes*",
    programs.softmax_across_ranks: "implied by _softmax.default at *: shard another dimension, or work on*",
    programs.implied_at_five_lines: "implied by add.Tensor, * maximum.default 5 times at *: redistribute it "
    "once before*at most 4 redistributions*",
    programs.implied_for_each_projection: "f32[[]8,64] S0 -> R implied by mm.default 3 times at *: "
    "redistribute it once before*at most 2 redistributions*",
    programs.gathered_one_by_one: "6 tensors gathered one by one at *: concatenate *5 redistributions*",
    programs.state_dict_gathered: "6 tensors gathered one by one at *: concatenate *5 redistributions*",
    programs.small_groups: "8 FSDP groups of 1,088 bytes or less gathered and reduced one by one at *",
    programs.group_gathered_for_each_chunk: "1,088 bytes of an FSDP group gathered 8 times at *, head): *",
    # Since torch 2.15 a softmax shards them by row.
    programs.logits_gathered: "f32[[]128,8192] S1 -> [RS]* redistributed for a cross entropy at *: keep it *",
    programs.logits_gathered_by_a_module: "f32[[]2,64,8192] S2 -> R redistributed for a cross entropy at *",
    programs.grown: "mm, relu, detach, * missed in each step at *: pad to a few sizes*at most 8 misses*",
    programs.new_size_each_time: "slice missed in each step at *: pad to a few sizes*",
    programs.gradients_reduced_by_each_op: "2 partial gradients reduced 6 times at *: redistribute each "
    "gradient once*at most 4 redistributions*",
    programs.retained: "1 live DTensor more after each step, as f32[[]64,64] S0: "
    "keep nothing beyond the step*",
}
SIMILAR = [
    programs.redistributed_once_before,
    programs.redistributed_after_a_write,
    programs.used_unchanged,
    programs.there_and_back_after_an_op,
    programs.placed_equally,
    programs.redistributed_explicitly,
    programs.reduced_by_an_op,
    programs.norms_at_once,
    programs.gathered_in_a_bucket,
    programs.results_gathered_one_by_one,
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
]
FSDP = needs(FSDP_WITHOUT_CUDA)
OF_FSDP = {
    programs.state_dict_gathered,
    programs.small_groups,
    programs.several_modules_in_a_group,
    programs.group_gathered_for_each_chunk,
    programs.group_gathered_for_all_chunks,
    programs.model_called_twice,
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


def supported(listed: Iterable[Program]) -> list[Any]:
    """Skip programs with FSDP if it requires CUDA."""
    return [pytest.param(one, marks=FSDP if one in OF_FSDP else (), id=one.__name__) for one in listed]


@pytest.mark.parametrize("program", supported(FIRES))
def test_rule_fires(mesh: DeviceMesh, program: Program) -> None:
    clamped = (lambda rows: rows.clamp(max=0.5)), (lambda rows: rows.clamp(max=0.25))
    if program is programs.new_number_each_time and not plans_again(mesh, *clamped):
        pytest.skip("no number is part of the key in this torch")
    pytest.LineMatcher(counted(program, mesh)).fnmatch_lines([f"*{FIRES[program]}"])


@pytest.mark.parametrize("program", supported(SIMILAR))
def test_no_rule_fires_on_similar_programs(mesh: DeviceMesh, program: Program) -> None:
    assert counted(program, mesh) == []


NOUN = {Redistribution: "redistribution", Wrapping: "call", Collective: ""}


@pytest.mark.parametrize(("before", "after", "kind"), CHANGES, ids=lambda each: each.__name__)
def test_advised_change_saves_the_promised_count(
    mesh: DeviceMesh, before: Program, after: Program, kind: type[StepEvent]
) -> None:
    steps, changed = steps_of(before, mesh), steps_of(after, mesh)
    [advice] = [one for one in advise(steps) if NOUN[kind] in one.saves][:1]
    assert advice.count == len(steps[-1].of(kind)) - len(changed[-1].of(kind))
    assert not [one for one in advise(changed) if one.change == advice.change]


def test_one_finding_for_each_cause(mesh: DeviceMesh) -> None:
    """One tensor or number at several lines is one cause; several of them are several causes."""
    assert [one.count for one in advise(steps_of(programs.implied_at_five_lines, mesh))] == [4]
    assert [one.count for one in advise(steps_of(programs.implied_of_five_tensors, mesh))] == [1] * 5
    assert [one.count for one in advise(steps_of(programs.grown, mesh))] == [8]


@pytest.mark.parametrize(
    "program",
    [
        programs.new_index_each_time,
        pytest.param(programs.number_without_an_overload, marks=needs_rule("leaky_relu.default")),
    ],
)
def test_number_that_no_tensor_can_replace(mesh: DeviceMesh, program: Program) -> None:
    steps = steps_of(program, mesh)
    assert not any("0-dim" in one.change for one in advise(steps))
    assert all(miss.remedy is Remedy.NONE for step in steps for miss in step.missed)


def test_numbers_have_separate_findings(mesh: DeviceMesh) -> None:
    clamped = (lambda rows: rows.clamp(max=0.5)), (lambda rows: rows.clamp(max=0.25))
    if not plans_again(mesh, *clamped):
        pytest.skip("no number is part of the key in this torch")
    assert [one.count for one in advise(steps_of(programs.one_number_at_three_lines, mesh))] == [3]
    assert [one.count for one in advise(steps_of(programs.three_numbers_at_three_lines, mesh))] == [1] * 3


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_gathers_each_matrix_once(mesh: DeviceMesh) -> None:
    steps = steps_of(programs.matrices_gathered_by_each_product, mesh)
    changed = steps_of(programs.matrices_gathered_once, mesh)
    [advice] = [one for one in advise(steps) if "gathered" not in one.seen and "sent" not in one.seen]
    assert advice.change.startswith("gather each matrix once")
    moves = [sum(bool(one.bytes) for one in each[-1].redistributions) for each in (steps, changed)]
    assert advice.count == moves[0] - moves[1]
    assert not [one for one in advise(changed) if one.change == advice.change]


@pytest.mark.parametrize(
    "program", [programs.projected_gradients, programs.logits_of_few_bytes], ids=lambda each: each.__name__
)
def test_implied_gathers_that_no_other_rule_avoids(mesh: DeviceMesh, program: Program) -> None:
    assert [one for one in counted(program, mesh) if "once" in one or "loss_parallel" in one] == []


FUSED = "fused=True"
LOCAL = "step on the local tensors: the result is the same"


@pytest.mark.parametrize(
    ("name", "has_plain"), [("Adam", True), ("AdamW", False), ("SGD", True), ("Adagrad", False)]
)
def test_budget_advises_a_fused_optimizer(
    mesh: DeviceMesh, name: str, has_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advised change works: fused if this torch has a rule for it, with one optimizer per kind."""
    monkeypatch.setattr("pytest_dtdispatch.advice.MIN_SHARE", float("-inf"))  # on a busy machine too
    make = getattr(torch.optim, name)
    every = programs.mixed_parameters(mesh)
    used = every if has_plain else every[:4]
    options = {"lr": 0.1, "momentum": 0.9} if name == "SGD" else {"lr": 0.1}
    step = make(used, foreach=False, **options).step
    changes = [one.change for one in budget_of(step, 2, 2).advice]
    fuses = f"_fused_{name.lower()}_.default" in ops_with_a_rule()
    expected = (MIXED if has_plain else f"give {name} {FUSED}") if fuses else LOCAL
    assert [change for change in changes if "fused" in change or "local" in change] == [expected]
    if fuses:
        for parameters in (every[:4], every[4:]):
            make(parameters, fused=True, **options).step()


def test_fused_optimizer_has_no_advice(mesh: DeviceMesh) -> None:
    budget = budget_of(programs.adamw_fused(mesh), 2, 2)
    assert not [one for one in budget.advice if FUSED in one.change]


def test_foreach_optimizer_is_advised_to_drop_foreach(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises with both foreach=True and fused=True."""
    monkeypatch.setattr("pytest_dtdispatch.advice.MIN_SHARE", float("-inf"))
    budget = budget_of(programs.adamw_by_lists(mesh), 2, 2)
    assert "give AdamW fused=True in place of foreach" in [one.change for one in budget.advice]


def test_budget_has_advice_from_its_counts(mesh: DeviceMesh) -> None:
    [advice] = budget_of(programs.implied(mesh), 3, 4).advice
    assert "implied by add.Tensor" in advice.seen
    assert 0 < advice.share <= 1
