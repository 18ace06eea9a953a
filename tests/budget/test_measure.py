"""Budgets of steps on DTensors: parts and source lines, without side effects on the program."""

from __future__ import annotations

import gc
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch import fake_mesh
from pytest_dtdispatch.advice import with_advice
from pytest_dtdispatch.budget.measure import ANOTHER_TRACER, budgeted_region, run_and_measure_budget
from pytest_dtdispatch.budget.model import Budget, CostShare, MeasuredBudget
from pytest_dtdispatch.core.events import Phase
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.lines.line_tracer import MAX_TRACING, LineTracer
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from pytest_dtdispatch.torchapi.profiling import is_profiling, recording_trace

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("young_heap", "nothing_stays")]

SLOW_NS = 20_000_000
WIDTH = 16


class Inner(torch.nn.Module):
    """A matmul, a wrap and a redistribution on separate lines."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        y: Any = x @ self.weight
        z = DTensor.from_local(torch.ones(8, WIDTH), self.mesh, [Replicate()], run_check=False)
        return (y + z).redistribute(placements=[Shard(0)])


class Outer(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.inner = distribute_module(Inner(mesh), mesh)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


@pytest.fixture
def x(mesh: DeviceMesh) -> Any:
    return distribute_tensor(torch.ones(8, WIDTH), mesh, [Replicate()])


@pytest.fixture
def train(mesh: DeviceMesh, x: Any) -> Callable[[], None]:
    """Return a training step."""
    model = Outer(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def budget_of(step: Callable[[], Any], warmup: int = 3, steps: int = 5) -> Budget:
    return run_and_measure_budget(step, warmup, steps, "train").budget


def line_of(text: str) -> str:
    """Return the name of the line of this file that starts with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))
    return f"test_measure.py:{number}"


def ns_of(spent: list[CostShare], name: str) -> float:
    return sum(one.ns for one in spent if one.name.endswith(name))


def test_training_step_budget_has_all_breakdowns(train: Callable[[], None]) -> None:
    budget = budget_of(train, steps=8)
    assert {"local", "dispatch", "wrapping", "autograd", "other"} <= set(budget.parts)
    assert any(part.startswith("redistribution") for part in budget.parts)
    assert "propagation" not in budget.parts
    assert sum(budget.parts.values()) + budget.unexplained_ns == pytest.approx(budget.measured_ns)
    assert budget.steps == 8
    assert budget.events > 50
    assert {"forward", "backward", "optimizer"} <= {one.name for one in budget.by_phase()}
    assert "inner" in {one.name for one in budget.by_module()}
    for text in ("y: Any = x @", "z = DTensor.from_local", "return (y + z)", "optimizer.step()"):
        assert ns_of(budget.by_line(), line_of(text)) > 0
    calls = {one.name: one.calls for one in budget.by_op()}
    assert calls["mm"] == 2  # forward, and backward of the weight
    assert calls["from_local"] == 1
    assert calls["redistribute f32[8,16]R -> S0"] == 1


def test_calls_match_the_counts(mesh: DeviceMesh, x: Any) -> None:
    weight = torch.nn.Parameter(distribute_tensor(torch.rand(WIDTH, WIDTH), mesh, [Shard(1)]))

    def step() -> None:
        y: Any = torch.relu(x @ weight).sin()  # autograd saves the result of relu
        (y.redistribute(placements=[Replicate()]) * 2).sum().backward()
        torch.ones(2, requires_grad=True).exp().detach()
        weight.grad = None

    counted = run_and_count(StepCalls("step", step, 3, 1)).steps[-1].calls
    assert sum(cell.calls for cell in budget_of(step).cells if cell.part == "dispatch") == counted


@pytest.mark.parametrize(
    ("module", "name", "part", "text"),
    [
        (
            sys.modules["torch.distributed.tensor._api"],
            "_FromTorchTensor",
            "wrapping",
            "z = DTensor.from_local",
        ),
        (
            sys.modules["torch.distributed.tensor._redistribute"],
            "Redistribute",
            "redistribution",
            "return (y + z)",
        ),
    ],
)
def test_slow_function_dominates_its_part_and_line(
    monkeypatch: pytest.MonkeyPatch, train: Callable[[], None], module: Any, name: str, part: str, text: str
) -> None:
    function = getattr(module, name)
    forward = function.forward

    def slow(*args: Any) -> Any:
        end = time.thread_time_ns() + SLOW_NS  # CPU time: waits for a core are a separate part
        while time.thread_time_ns() < end:
            continue
        return forward(*args)

    monkeypatch.setattr(function, "forward", staticmethod(slow))
    found = budget_of(train)
    own = sum(ns for each, ns in found.parts.items() if each.startswith(part))
    assert own > 0.9 * SLOW_NS
    assert own > 0.5 * sum(cell.ns for cell in found.cells)  # 0.77 with a load of 12
    assert ns_of(found.by_line(), line_of(text)) > 0.9 * SLOW_NS
    assert ns_of(found.by_phase(), "forward") > 0.9 * SLOW_NS
    assert ns_of(found.by_module(), "inner") > 0.9 * SLOW_NS


@pytest.mark.parametrize("warmup", [0, 3])
def test_step_that_returns_a_generator_is_an_error(warmup: int) -> None:
    with pytest.raises(MeasurementError, match=r"^budget\(\): the result is a generator"):
        budget_of(lambda: (number for number in range(3)), warmup)


def test_slow_line_of_python_is_found(train: Callable[[], None]) -> None:
    def step() -> None:
        train()
        time.sleep(SLOW_NS / 1e9)

    found = budget_of(step)
    assert ns_of(found.by_line(), line_of("time.sleep(SLOW_NS")) > 0.9 * SLOW_NS
    assert ns_of(found.by_phase(), "other") > 0.9 * SLOW_NS
    assert found.parts["other"] > 0.9 * SLOW_NS


def test_misses_are_propagation(mesh: DeviceMesh) -> None:
    rows = iter(range(8, 1000))
    x = distribute_tensor(torch.ones(1024, WIDTH), mesh, [Replicate()])
    found = budget_of(lambda: x.narrow(0, 0, next(rows)), 1, 8)
    assert found.parts["propagation"] > 0.5 * sum(cell.ns for cell in found.cells)
    assert found.by_op()[0].name == "slice"


def test_steps_that_grow_have_phases_and_lines(mesh: DeviceMesh) -> None:
    rows = itertools.count(8, 4)
    weight = torch.nn.Parameter(distribute_tensor(torch.rand(WIDTH, WIDTH), mesh, [Replicate()]))

    def step() -> None:
        grown = distribute_tensor(torch.rand(next(rows), WIDTH), mesh, [Shard(0)])
        (grown.redistribute(placements=[Replicate()]) @ weight).sum().backward()

    found = budget_of(step, 1, 4)
    assert {"forward", "backward"} <= {share.name for share in found.by_phase()}
    missed = [cell for cell in found.cells if cell.part == "propagation"]
    own = line_of("(grown.redistribute(placements")
    assert missed
    assert all(cell.place and cell.place.line_text.endswith(own) for cell in missed)


def test_pauses_are_measured_in_further_steps() -> None:
    steps = itertools.count()

    def step() -> None:
        next(steps)
        if gc.isenabled():
            gc.collect()

    budget = budget_of(step, 0, 4)
    pauses = budget.collector
    assert pauses is not None
    assert (pauses.steps, pauses.oldest) == (4, 4)
    assert 0 < pauses.oldest_ns <= pauses.paused_ns < pauses.wall_ns
    assert budget.measured_ns < pauses.longest_ns
    assert gc.isenabled()
    assert {one.change for one in with_advice(MeasuredBudget(budget, (), ())).advice} == {
        "call gc.freeze() after the warm-up, and gc.collect() between steps"
    }
    gc.disable()
    try:
        assert budget_of(step, 0, 4).collector is None
    finally:
        gc.enable()


FSDP_PARTS = {"fsdp collectives", "fsdp copies", "fsdp python"}


@pytest.fixture
def sharded_step() -> Iterator[Callable[[], None]]:
    """Return a training step under FSDP2."""
    shard = fully_shard()
    with fake_mesh(4) as mesh:
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)))
        for each in (*model, model):
            shard(each, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.rand(8, WIDTH)

        def step() -> None:
            model(x).sum().backward()
            optimizer.step()

        yield step


def test_python_of_torch_leaves_other(sharded_step: Callable[[], None]) -> None:
    budget = budget_of(sharded_step, steps=4)
    assert {*FSDP_PARTS, "modules", "optimizer"} < set(budget.parts)
    assert "other collectives" not in budget.parts
    assert budget.parts["other"] < 0.1 * budget.measured_ns
    assert sum(budget.parts.values()) + budget.unexplained_ns == pytest.approx(budget.measured_ns)
    phases = {cell.place.phase for cell in budget.cells if cell.place and cell.part in FSDP_PARTS}
    assert phases == {Phase.FORWARD, Phase.BACKWARD}


def test_torch_without_an_fsdp_name_is_noted(
    sharded_step: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = observe.POINTS["fsdp_node"]
    monkeypatch.setitem(observe.POINTS, "fsdp_node", node._replace(names=("gone",)))
    budget = budget_of(sharded_step, steps=2)
    assert not FSDP_PARTS & set(budget.parts)
    assert "no parts of FSDP2: torch has no FSDPParamGroup.gone" in budget.note
    assert "FSDP2" not in budget_of(lambda: None, 0, 1).note


def test_checkpointed_block_has_own_lines_in_backward(mesh: DeviceMesh, x: Any) -> None:
    inner = Outer(mesh).inner
    found = budget_of(lambda: checkpoint(inner, x, use_reentrant=False).sum().backward())
    lines = {(c.place.line_text.rpartition("/")[2], str(c.place.phase)) for c in found.cells if c.place}
    assert {(line_of("y: Any = x @"), phase) for phase in ("forward", "backward")} <= lines


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.tanh()


class Doubling(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return Doubled.apply(x)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("run", [lambda inner, x: inner(x), partial(checkpoint, use_reentrant=False)])
def test_custom_backward_belongs_to_applying_module(x: Any, run: Any) -> None:
    layers = torch.nn.Sequential(Doubling(), torch.nn.Identity(), Doubling())
    x.requires_grad_()
    found = budget_of(lambda: run(layers, x).sum().backward())
    own = line_of("return gradient.tanh()")
    sources = [c.place for c in found.cells if c.op == "tanh" and c.place and c.place.line_text.endswith(own)]
    assert {(place.module, str(place.phase)) for place in sources} == {("0", "backward"), ("2", "backward")}


def test_optimizer_in_backward_hooks_is_optimizer(mesh: DeviceMesh, x: Any) -> None:
    model = Outer(mesh)
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

    def check(tensor: torch.Tensor) -> None:
        assert len(tensor)

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()  # in backward
        parameter.grad = None

    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(hook)
        optimizer.register_step_post_hook(lambda *_: check(torch.ones(5).erf()))
    found = budget_of(lambda: model(x).sum().backward())
    for op in ("add_", "erf"):
        assert {str(cell.place.phase) for cell in found.cells if cell.op == op and cell.place} == {
            "optimizer"
        }


def test_failed_or_refused_budget_leaves_nothing_behind() -> None:
    calls = iter(range(100))
    with pytest.raises(ZeroDivisionError):
        budget_of(lambda: 1 // (7 - next(calls)), 2, 8)
    assert sys.gettrace() is None
    profiler = torch.autograd.profiler.profile()
    with profiler, pytest.raises(MeasurementError, match="a profiler of torch is running"):
        budget_of(lambda: None, 0, 1)
    assert budget_of(lambda: None, 0, 1).measured_ns > 0


def scheduled_profiler() -> Any:
    """Profile from the third step of a schedule."""
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1))

    @contextmanager
    def run() -> Iterator[Any]:
        with profiler:
            profiler.step()
            profiler.step()
            yield

    return run()


@pytest.mark.parametrize(
    "profiler", [torch.profiler.profile, torch.autograd.profiler.profile, scheduled_profiler]
)
def test_profiler_of_the_step_is_refused(profiler: Callable[[], Any]) -> None:
    def step() -> None:
        with profiler():
            torch.ones(2)

    with pytest.raises(MeasurementError, match=r"test_measure\.py:\d+ opens a profiler of torch"):
        budget_of(step, 0, 1)
    assert not is_profiling()


def test_profiler_prepared_before_the_step_is_refused() -> None:
    refused = pytest.raises(MeasurementError, match="a budget needs")
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=100)
    with torch.profiler.profile(schedule=schedule) as profiler, refused:
        budget_of(profiler.step, 0, 1)
    assert not is_profiling()


def test_refused_profiler_has_recorded_its_region() -> None:
    budgets: list[MeasuredBudget] = []
    refused = pytest.raises(MeasurementError, match="opens a profiler")
    with refused, budgeted_region("test", budgets.append), torch.profiler.profile() as profiler:
        torch.ones(2)
    assert "aten::ones" in {event.key for event in profiler.key_averages()}
    assert not budgets


def test_trace_contains_names_with_invalid_unicode() -> None:
    found: list[str] = []
    with recording_trace("step \udc80", found.append):
        torch.ones(2)
    assert "udc80" in found[0]


def test_trace_is_refused_under_a_profiler() -> None:
    traces: list[str] = []
    refused = pytest.raises(MeasurementError, match="opens a profiler")
    with refused, recording_trace("step", traces.append), torch.profiler.profile():
        torch.ones(2)
    assert not traces


def test_lines_are_absent_with_another_tracer(train: Callable[[], None]) -> None:
    sys.settrace(lambda *_: None)
    try:
        found = budget_of(train, 2, 8)
    finally:
        sys.settrace(None)
    assert "another tracer" in found.note
    assert found.tracers == (__name__.partition(".")[0],)
    assert {one.name for one in found.by_line()} == {""}
    assert found.parts["dispatch"] > 0


def test_anomaly_mode_and_threads_are_facts_of_a_budget(train: Callable[[], None]) -> None:
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    torch.set_num_threads(cores + 1)
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):  # DTensor has no rule for it
            found = budget_of(train, 1, 2)
    finally:
        torch.set_num_threads(threads)
    assert found.slowed_by["anomaly mode"] == "on"
    assert found.slowed_by["intra-op threads"].startswith(f"{cores + 1} on {cores} core")
    assert not budget_of(train, 1, 2).slowed_by


@pytest.mark.parametrize("once", [False, True])
def test_anomaly_mode_inside_a_step_is_named(train: Callable[[], None], once: bool) -> None:
    def step() -> None:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            train()

    regions: list[MeasuredBudget] = []
    if once:
        with budgeted_region("train", regions.append):
            step()
    found = regions[0].budget if once else budget_of(step, 1, 2)
    assert found.slowed_by == {"anomaly mode": "on"}


def test_settings_without_effect_are_not_named(
    train: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dist: Any = torch.distributed
    level = dist.get_debug_level()
    monkeypatch.setattr(torch.cuda, "is_initialized", bool)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # torch has read it at import
    dist.set_debug_level(dist.DebugLevel.OFF)
    try:
        assert not budget_of(train, 1, 2).slowed_by
        dist.set_debug_level(dist.DebugLevel.INFO)
        assert budget_of(train, 1, 2).slowed_by == {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
    finally:
        dist.set_debug_level(level)


def test_tracer_of_a_step_remains(train: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_dtdispatch.budget.measure.MAX_TRACING", math.inf)  # also on a busy machine

    def tracer(*_: Any) -> None: ...

    def step() -> None:
        train()
        sys.settrace(tracer)

    budgets: list[MeasuredBudget] = []
    try:
        with budgeted_region("test", budgets.append):
            step()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    [once] = budgets
    assert ANOTHER_TRACER in once.budget.note
    assert {one.name for one in once.budget.by_line()} == {""}


def test_tracer_inside_each_step_hides_lines() -> None:
    def step() -> None:
        sys.settrace(lambda *_: None)
        torch.ones(2)
        sys.settrace(None)

    assert ANOTHER_TRACER in budget_of(step, 0, 4).note


def double(number: int) -> int:
    return number * 2


def test_following_plain_python_is_limited_with_line() -> None:
    calls, tracer = 100_000, LineTracer()
    with tracer.tracing(sys._getframe(), MAX_TRACING):
        for number in range(calls):
            double(number)
        assert sys.gettrace() is None
    assert len(tracer.lines) < calls
    assert tracer.lines[-1].place is None
    assert tracer.ended_at
    assert "test_measure.py:" in tracer.ended_at.line_text


def test_import_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "".join(f"def f{n}(): return {n}\nf{n}()\n" for n in range(20))
    (tmp_path / "imported_once.py").write_text(functions, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    tracer = LineTracer()

    def load() -> None:
        import imported_once  # type: ignore[import-not-found]  # noqa: F401

    with tracer.tracing(None):
        load()
        double(1)
    lines = [each.place.line_text.rpartition("/")[2] for each in tracer.lines if each.place]
    assert line_of("import imported_once") in lines
    assert line_of("return number * 2") in lines
    assert not [line for line in lines if "imported_once.py" in line]


def test_region_is_measured_in_one_run(train: Callable[[], None]) -> None:
    found: list[MeasuredBudget] = []
    with budgeted_region("test", found.append):
        train()
    budget = found[0].budget
    assert budget.steps == 0
    assert budget.unexplained_ns == pytest.approx(0, abs=1)
    assert "propagation" in budget.parts
