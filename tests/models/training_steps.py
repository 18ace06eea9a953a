"""Training steps, and the methods that run them: each must compute the same as a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.func import functional_call, grad
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.comparing import measure as compare_measure
from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import run_and_measure_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of
from pytest_dtdispatch.watch.step_watch import StepWatch

STEPS = 3
PLAN = Plan(rounds=1, repeat=2, max_time_s=0.1)
LOOPS = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}


class Training:
    """A model with its step.

    Attributes:
        losses: losses of the program's steps, without those of repetitions.
        runs: number of calls of the step, including repetitions.
    """

    def __init__(self, model: nn.Module, step: Callable[[], torch.Tensor]) -> None:
        self.losses: list[torch.Tensor] = []
        self.runs = 0
        self._model, self._step = model, step

    def step(self) -> torch.Tensor:
        """Run a step; return its loss."""
        self.runs += 1
        return self._step().detach()

    def record(self) -> None:
        """Run a step, and record its loss."""
        self.losses.append(self.step().clone())

    def values(self) -> list[torch.Tensor]:
        """Return losses and parameters."""
        return [local_of(each).detach().clone() for each in (*self.losses, *self._model.parameters())]


Build = Callable[[], Training]


def plain(build: Build, steps: int = STEPS) -> Training:
    training = build()
    for _ in range(steps):
        training.record()
    return training


def called(build: Build) -> Iterator[Training]:
    """Measure each step as a call; repetitions restore the state."""
    training = build()
    for _ in range(STEPS):
        loss, *_ = run_and_measure_call(training.step, (), None, ShardingCaches(), PLAN)
        training.losses.append(loss.clone())
    yield training


def compared(build: Build) -> Iterator[Training]:
    """Compare two equal trainings step by step."""
    both = {"first": build(), "second": build()}
    for _ in range(STEPS):
        returned: dict[str, torch.Tensor] = {}
        steps = {label: partial(_first_result, label, one, returned) for label, one in both.items()}
        with patch.object(compare_measure, "MIN_ROUNDS", 1):
            run_and_measure_variants(Variants("steps", steps), ShardingCaches(), PLAN)
        for label, one in both.items():
            one.losses.append(returned[label])
    yield from both.values()


def _first_result(label: str, training: Training, returned: dict[str, torch.Tensor]) -> torch.Tensor:
    loss = training.step()
    if label not in returned:
        returned[label] = loss.clone()
    return loss


def captured(build: Build) -> Iterator[Training]:
    training = build()
    with SignatureCapture(ResultStore(), PLAN):
        for _ in range(STEPS):
            training.record()
    yield training


def counted(build: Build) -> Iterator[Training]:
    training = build()
    run_and_count(StepCalls("step", training.record, 1, STEPS - 1))
    yield training


def budgeted(build: Build) -> Iterator[Training]:
    """Measure a budget, which runs as many steps as it needs and restores nothing."""
    training = build()
    run_and_measure_budget(training.record, 1, 1, "step")
    yield training


def watched(build: Build) -> Iterator[Training]:
    training = build()
    with StepWatch(print=lambda text: None) as watch:
        for _ in range(STEPS):
            training.record()
            watch.step()
    yield training


METHODS = {
    "call": called,
    "compare": compared,
    "capture": captured,
    "steps": counted,
    "budget": budgeted,
    "watch": watched,
}


def differences(build: Build, method: str) -> list[str]:
    """Run steps by a method; return differences from a plain loop with the same number of steps."""
    found = []
    for training in METHODS[method](build):
        expected, actual = plain(build, len(training.losses)).values(), training.values()
        unequal = [
            number
            for number, (one, other) in enumerate(zip(expected, actual, strict=True))
            if not torch.equal(one, other)
        ]
        finite = all(torch.isfinite(each).all() for each in expected)
        found += [f"{len(unequal)} of {len(expected)} losses and parameters differ"] * bool(unequal)
        found += ["a loss or a parameter is not finite"] * (not finite)
    return found


def trained(model: nn.Module, optimizer: Any, forward: Callable[[], torch.Tensor]) -> Training:
    """Return steps of a model: forward, backward and the optimizer."""

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss

    return Training(model, step)


def layers(mesh: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    if mesh is None:
        return model
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})  # type: ignore[return-value]


def mlp(optimizer: Any, mesh: Any = None, **how: Any) -> Training:
    model, x = layers(mesh), torch.rand(4, 8)
    return trained(model, optimizer(model.parameters(), lr=0.01, **how), lambda: model(x).square().mean())


def reentrant() -> Training:
    model, x = layers(), torch.rand(4, 8, requires_grad=True)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    return trained(model, optimizer, lambda: checkpoint(model, x, use_reentrant=True).square().mean())


def in_backward() -> Training:
    model, x = layers(), torch.rand(4, 8)

    def update(optimizer: Any, parameter: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        optimizer = AdamW([parameter], lr=0.01)
        parameter.register_post_accumulate_grad_hook(partial(update, optimizer))

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    return Training(model, step)


def scaled() -> Training:
    model, x = layers(), torch.rand(4, 8)
    optimizer, scaler = SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=4.0)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(model, step)


def functional() -> Training:
    model, x = layers(), torch.rand(4, 8)
    parameters = dict(model.named_parameters())

    def loss_of(values: Any) -> torch.Tensor:
        result: torch.Tensor = functional_call(model, values, (x,)).square().mean()
        return result

    def step() -> torch.Tensor:
        gradients: Any = grad(loss_of)({name: each.detach() for name, each in parameters.items()})
        with torch.no_grad():
            for name, each in parameters.items():
                each.sub_(gradients[name], alpha=0.01)
        return loss_of(parameters)

    return Training(model, step)


def small_trainings(mesh: Any) -> dict[str, Build]:
    """Return trainings that require no other package."""
    parallel = {
        f"tensor-parallel MLP, {kind.__name__} {name}": partial(mlp, kind, mesh, **how)
        for kind in (SGD, AdamW)
        for name, how in LOOPS.items()
    }
    return {
        "MLP, SGD": partial(mlp, SGD),
        "MLP, AdamW": partial(mlp, AdamW),
        **parallel,
        "reentrant checkpoint": reentrant,
        "optimizer in backward": in_backward,
        "GradScaler": scaled,
        "torch.func": functional,
    }
