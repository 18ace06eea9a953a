"""State outside of tensors after a measured call: random generators and Python values of optimizers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.replay.states import containers_in, refill
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import QUICK, Step, called, compared

pytestmark = pytest.mark.torch


def compared_with_itself(fn: Step) -> None:
    run_and_measure_variants(Variants("it", {"one": fn, "other": fn}), ShardingCaches(), QUICK)


def of_python() -> Step:
    random.seed(1)
    return random.random


def of_python_object() -> Step:
    return random.Random(1).random


def of_numpy() -> Step:
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(1)
    return numpy.random.rand  # type: ignore[no-any-return]


def of_numpy_gaussian() -> Step:
    numpy = pytest.importorskip("numpy")
    return numpy.random.RandomState(1).randn  # type: ignore[no-any-return]


def of_numpy_object() -> Step:
    return pytest.importorskip("numpy").random.default_rng(1).random  # type: ignore[no-any-return]


LONG = [of_python_object, of_numpy_gaussian, of_numpy_object]
GENERATORS = [of_python, of_numpy, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)]


@pytest.mark.parametrize("measure", [called, pytest.param(compared_with_itself, marks=pytest.mark.long)])
@pytest.mark.parametrize("create", GENERATORS)
def test_generator_advances_once(create: Callable[[], Step], measure: Callable[[Step], None]) -> None:
    draw = create()
    draw()
    expected = draw()
    draw = create()
    measure(draw)
    assert draw() == expected


@pytest.mark.long
def test_torch_generator_advances_once() -> None:
    generator = torch.Generator().manual_seed(1)
    called(lambda: torch.rand(1, generator=generator))
    assert torch.equal(generator.get_state(), _advanced().get_state())


def _advanced() -> torch.Generator:
    generator = torch.Generator().manual_seed(1)
    torch.rand(1, generator=generator)
    return generator


def test_quasirandom_engine_advances_once() -> None:
    engine, other = (torch.quasirandom.SobolEngine(2, scramble=True, seed=1) for _ in range(2))
    called(engine.draw)
    other.draw()
    assert torch.equal(engine.draw(), other.draw())


def lbfgs() -> tuple[Step, Step]:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.rand(4))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure), lambda: (weight, optimizer.state_dict())


def scheduled() -> tuple[Step, Step]:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.rand(4))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step() -> None:
        (weight**2).sum().backward()
        optimizer.step()
        scheduler.step()

    return step, lambda: (weight, optimizer.state_dict(), scheduler.state_dict())


class Recording(torch.optim.SGD):
    """Optimizer with Python values, some of them nested."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.1)
        self.steps = 0
        self.log: dict[str, Any] = {"steps": [], "seen": set()}

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        self.log["steps"].append([self.steps])
        self.log["seen"].add(self.steps)
        return super().step(closure)


def custom() -> tuple[Step, Step]:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = Recording([weight])

    def step() -> None:
        weight.grad = torch.ones(4)
        optimizer.step()

    return step, lambda: (weight, optimizer.steps, optimizer.log)


@pytest.mark.parametrize("measure", [called, pytest.param(compared, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "create", [lbfgs, *(pytest.param(each, marks=pytest.mark.long) for each in (scheduled, custom))]
)
def test_optimizer_has_the_state_of_one_step(
    create: Callable[[], tuple[Step, Step]], measure: Callable[[Step], None]
) -> None:
    step, state = create()
    step()
    expected = repr(state())
    step, state = create()
    measure(step)
    assert repr(state()) == expected


def test_refilled_containers_keep_their_identity() -> None:
    inner: list[int] = [1]
    outer: dict[str, Any] = {"inner": inner, "other": {2}}
    containers = containers_in(outer)
    copies = [each.copy() for each in containers]
    inner.append(3)
    outer["more"] = outer.pop("other")
    for container, copy in zip(containers, copies, strict=True):
        refill(container, copy)
    assert outer == {"inner": [1], "other": {2}}
    assert outer["inner"] is inner
