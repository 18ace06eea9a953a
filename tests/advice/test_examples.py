"""Each rule on a program that it is made for, and on one that looks alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from tests.advice import programs
from tests.advice.programs import Step
from tests.probes import plans_again

pytestmark = pytest.mark.torch

Program = Callable[[DeviceMesh], Step]


def counted(program: Program, mesh: DeviceMesh) -> list[str]:
    steps = run_and_count(StepCalls("step", program(mesh), 3, 3)).steps
    return [" ".join(one.lines) for one in advise(steps)]


FIRES: dict[Program, str] = {
    programs.redistributed_three_times: "S0 -> R redistributed 3 times in each of 3 places, at *: "
    "redistribute it once before*saves at most 12 redistributions*",
    programs.there_and_back: "f32[[]64,64] S0 -> R -> S0 redistributed there and back at *",
    programs.implied: "f32[[]64,64] S1 -> S0 implied by add.Tensor at *: make it S0, *",
    programs.norms_one_by_one: "6 partial results of one number reduced one by one at *5 collectives*",
    programs.wrapped_three_times: "f32[[]256,64] S0 given to from_local 3 times at *2 calls of from_local*",
    programs.parameters_wrapped: "4 parameters given to from_local in each step at *4 calls of from_local*",
    programs.another_number_each_time: "clamp missed in each step at *value of max*: give the number as a*",
    programs.another_shape_each_time: "mul missed in each step at *shape of self*: pad to a few sizes*",
    programs.kept: "1 live DTensor more after each step, as f32[[]64,64] S0: keep nothing beyond the step*",
}
LOOKS_ALIKE = [
    programs.redistributed_once_before,
    programs.redistributed_after_a_write,
    programs.used_as_it_was,
    programs.there_and_back_after_an_op,
    programs.placed_alike,
    programs.moved_as_asked,
    programs.reduced_by_an_op,
    programs.norms_at_once,
    programs.gathered_one_by_one,
    programs.wrapped_once,
    programs.others_wrapped,
    programs.parameters_that_are_dtensors,
    programs.inputs_wrapped,
    programs.a_tensor_each_time,
    programs.padded,
    programs.one_number,
    programs.replaced,
]


@pytest.mark.parametrize("program", FIRES, ids=lambda program: program.__name__)
def test_a_rule_fires(mesh: DeviceMesh, program: Program) -> None:
    clamped = (lambda rows: rows.clamp(max=0.5)), (lambda rows: rows.clamp(max=0.25))
    if program is programs.another_number_each_time and not plans_again(mesh, *clamped):
        pytest.skip("no number is part of the key in this torch")
    pytest.LineMatcher(counted(program, mesh)).fnmatch_lines([f"*{FIRES[program]}"])


@pytest.mark.parametrize("program", LOOKS_ALIKE, ids=lambda program: program.__name__)
def test_no_rule_fires_on_what_looks_alike(mesh: DeviceMesh, program: Program) -> None:
    assert counted(program, mesh) == []


@pytest.mark.parametrize("make", ["forloop", "foreach", "fused"])
def test_optimizer_in_a_budget(mesh: DeviceMesh, make: str) -> None:
    program = {"forloop": programs.adamw, "foreach": programs.adamw_by_lists, "fused": programs.adamw_fused}[
        make
    ]
    cells = run_and_measure_budget(program(mesh), 3, 4, "step").cells
    # Of the cells alone: on a busy machine the step may take so long that the advice would save too little.
    found = [one for one in advise((), cells) if one.change == "give AdamW fused=True"]
    assert bool(found) == (make != "fused")


def test_a_budget_has_the_advice_of_what_it_counted(mesh: DeviceMesh) -> None:
    [advice] = run_and_measure_budget(programs.implied(mesh), 3, 4, "step").advice
    assert "implied by add.Tensor" in advice.seen
    assert 0 < advice.share <= 1
