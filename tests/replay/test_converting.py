"""Redistributions and wraps in a region: one row each, measured without side effects on the program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.core.measurement import Measurement, State, Unit
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.sampler import Sampler
from pytest_dtdispatch.torchapi.observe import CONVERTERS
from pytest_dtdispatch.torchapi.tensors import wait_for
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode
from tests.measured_runs import FEW, Make, captured

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_stays", "young_heap")]

Body = Callable[[], Any]
R, S, P = Replicate(), Shard, Partial()


def rows(body: Body, plan: Plan = FEW) -> dict[str, Measurement]:
    return {row.label: row for row in captured(body, plan=plan).measurements()}


class Tensors:
    """Inputs of conversions: a local part, the whole tensor, and the tensor sharded on a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.local, self.whole = mesh, torch.rand(4, 8), torch.rand(16, 8)
        self.split: Any = distribute_tensor(self.whole, mesh, [S(0)])


CONVERSIONS: dict[str, Callable[[Tensors], Any]] = {
    "redistribute(f32[16,8]S0 -> R)@4": lambda t: t.split.redistribute(placements=[R]),
    "redistribute(f32[16,8]S0 -> S1)@4": lambda t: t.split.redistribute(placements=[S(1)]),
    "redistribute(f32[16,8]S0 -> S0)@4": lambda t: t.split.redistribute(placements=[S(0)]),
    "redistribute(f32[16,8]S0 -> R, async_op=True)@4": lambda t: wait_for(
        t.split.redistribute(placements=[R], async_op=True)
    ),
    "from_local(f32[4,8] -> S0)@4": lambda t: DTensor.from_local(t.local, t.mesh, [S(0)]),
    "from_local(f32[4,8] -> P)@4": lambda t: DTensor.from_local(t.local, t.mesh, [P]),
    "from_local(f32[4,8] -> R, run_check=True)@4": lambda t: DTensor.from_local(
        t.local, t.mesh, [R], run_check=True
    ),
    "to_local(f32[16,8]S0)@4": lambda t: t.split.detach().requires_grad_().to_local(),
    "distribute_tensor(f32[16,8] -> S0)@4": lambda t: distribute_tensor(t.whole, t.mesh, [S(0)]),
    "distribute_tensor(f32[16,8] -> R)@4": lambda t: distribute_tensor(t.whole, t.mesh, [R]),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_each_conversion_is_a_row_that_is_counted(mesh: DeviceMesh, name: str) -> None:
    tensors = Tensors(mesh)
    found = rows(lambda: [CONVERSIONS[name](tensors) for _ in range(2)], replace(FEW, cold=True))
    assert name in found
    row = found[name]
    assert row.calls == 2
    plans = name.startswith("redistribute") and "S0 -> S0" not in name
    states = {State.COLD, State.MISS, State.HIT} if plans else {State.CALL}
    assert {samples.state for samples in row.recorded()} == states
    assert row.proof == ("proved" if plans else "unpropagated")
    assert not any(samples.refused for samples in row.figures.samples)


def test_backward_has_separate_rows(mesh: DeviceMesh) -> None:
    leaf = torch.rand(4, 8, requires_grad=True)

    def work() -> None:
        x: Any = DTensor.from_local(leaf, mesh, [S(0)])
        x.redistribute(placements=[R]).to_local().sum().backward()

    found = [label for label, row in rows(work).items() if ".default" not in label and ".d" not in label]
    assert found == [
        "from_local(f32[4,8] -> S0)@4",
        "redistribute(f32[16,8]S0 -> R)@4",
        "to_local(f32[16,8]R)@4",
        "to_local_backward(f32[16,8] -> R)@4",
        "redistribute_backward(f32[16,8]R -> S0)@4",
        "from_local_backward(f32[16,8]S0 -> S0)@4",
    ]


def test_row_lists_its_collectives(mesh: DeviceMesh) -> None:
    split: Any = distribute_tensor(torch.rand(16, 8), mesh, [S(0)])
    partial: Any = DTensor.from_local(torch.rand(16, 8), mesh, [P])

    def work() -> None:
        split.redistribute(placements=[R])
        partial.redistribute(placements=[S(0)])
        partial.redistribute(placements=[R])
        distribute_tensor(torch.rand(16, 8), mesh, [S(0)])
        DTensor.from_local(torch.rand(4, 8), mesh, [S(0)])

    remarks = {label: row.figures.remarks[0] for label, row in rows(work).items()}
    assert remarks == {
        "redistribute(f32[16,8]S0 -> R)@4": "runs all_gather",
        "redistribute(f32[16,8]P -> S0)@4": "runs reduce_scatter",
        "redistribute(f32[16,8]P -> R)@4": "runs all_reduce",
        "distribute_tensor(f32[16,8] -> S0)@4": "runs scatter",
        "from_local(f32[4,8] -> S0)@4": "runs no collective",
    }


def test_row_of_an_op_notes_its_redistribution(shard: Make) -> None:
    a, b = shard(8, 8), shard(8, 8)
    [(label, row)] = rows(lambda: a @ b).items()
    assert label == "mm.default(f32[8,8]S0, f32[8,8]S0)@4"
    assert row.figures.notes == ("redistributes f32[8,8]S0 -> R",)


class Codes(Sampler):
    """Records the code of all functions that convert, at each repetition."""

    name, unit = "codes", Unit("codes", is_time=False, steady="codes")

    def __init__(self) -> None:
        self.seen = {self.read()}
        self.begin = self.end = self.count

    def count(self) -> int:
        self.seen.add(self.read())
        return len(self.seen)

    def read(self) -> tuple[Any, ...]:
        found = [getattr(*each) for point in CONVERTERS for each in point.attributes()]
        return tuple(function.__code__ for function in found)


@pytest.mark.parametrize("name", ["op", "conversion"])
def test_repetitions_convert_without_an_observer(shard: Make, name: str) -> None:
    a, codes = shard(8, 8), Codes()
    bodies: dict[str, Callable[[], Any]] = {
        "op": lambda: a + a,
        "conversion": lambda: a.redistribute(placements=[R]),
    }
    with SignatureCapture(ResultStore(), replace(FEW, sampler=codes)):
        bodies[name]()
        assert len(codes.seen) == 1, "an op that converts would take longer"
        codes.seen.add(codes.read())
    assert len(codes.seen) == 2, "the capture observes conversions between measurements"


def test_double_backward_through_captured_redistribution(mesh: DeviceMesh) -> None:
    def second(is_captured: bool) -> torch.Tensor | str:
        leaf = torch.arange(32.0).reshape(4, 8).requires_grad_()
        with SignatureCapture(ResultStore(), Plan(2, 3)) if is_captured else nullcontext():
            x: Any = DTensor.from_local(leaf, mesh, [S(0)])
            whole = x.redistribute(placements=[R]).to_local()
            [grad] = torch.autograd.grad((whole**3).sum(), leaf, create_graph=True)
            try:
                [again] = torch.autograd.grad(grad.sum(), leaf)
            except RuntimeError as error:  # torch versions whose own backward is not differentiable
                return str(error)
        return again

    plain, in_capture = second(is_captured=False), second(is_captured=True)
    if isinstance(plain, str) or isinstance(in_capture, str):
        assert in_capture == plain
    else:
        assert torch.equal(in_capture, plain)


def test_error_of_the_program_leaves_no_row(mesh: DeviceMesh) -> None:
    book = ResultStore()
    with SignatureCapture(book, Plan(2, 3)), pytest.raises(RuntimeError):
        DTensor.from_local(torch.rand(4, 8), mesh, [S(0)], shape=torch.Size([16, 8]))
    assert book.measurements() == ()


def test_ops_and_conversions_are_selected_by_globs(shard: Make) -> None:
    a = shard(8, 8)
    body = lambda: ((a + a) * a - a).redistribute(placements=[R]).to_local()  # noqa: E731
    book = captured(body, "add*", "mu?.Tensor", "redist*")
    assert [row.op for row in book.measurements()] == ["add.Tensor", "mul.Tensor", "redistribute"]
    assert book.calls_passed_over == 2


def test_time_capture_mode_measures_only_ops(shard: Make) -> None:
    a = shard(8, 8)
    with TimeCaptureMode(2) as mode:
        (a + a).redistribute(placements=[R])
    assert list(mode.op_to_time) == ["add.Tensor"]
