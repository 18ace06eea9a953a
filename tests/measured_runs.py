"""Helpers of tests that measure: a call and a capture of few rounds, and a mode that records ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.core.checks import Setup
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import run_and_measure_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.timing import no_op
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, StepCounts
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

Make = Callable[..., Any]
Step = Callable[[], Any]
FEW = Plan(2, 3)
QUICK = Plan(rounds=2, max_time_s=0.1)


def measured_call(
    fn: Callable[..., Any], *args: Any, setup: Setup | None = None, plan: Plan = FEW
) -> tuple[Any, Figures]:
    """Measure a call; return its result and figures."""
    result, _, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), plan)
    return result, figures


def captured(body: Callable[[], Any], *ops: str, plan: Plan = FEW) -> ResultStore:
    """Run a program in a capture; return its measurements."""
    results = ResultStore()
    with SignatureCapture(results, plan, ops):
        body()
    return results


def called(step: Step) -> None:
    """Measure a step as a call."""
    measured_call(step, plan=QUICK)


def counted(step: Step) -> None:
    """Count eight steps."""
    run_and_count(StepCalls("step", step, 3, 5))


def counts_of(step: Step) -> StepCounts:
    """Run a step once, and return its counts."""
    with StepCounter() as counter:
        step()
        return counter.lap()


def watched(step: Step) -> None:
    """Watch a loop of eight steps."""
    with StepWatch(list[str]().append) as watch:
        for _ in range(8):
            step()
            watch.step()


def budgeted(step: Step) -> None:
    """Measure the budget of a step."""
    run_and_measure_budget(step, 2, 4, "step")


def compared(step: Step) -> None:
    """Compare a step with a no-op."""
    variants = Variants("it", {"one": step, "other": no_op}, equal=lambda first, other: True)
    run_and_measure_variants(variants, ShardingCaches(), QUICK)


class NamingMode(TorchDispatchMode):
    """A mode that records the names of ops, and runs a function before each of them."""

    def __init__(self, before_each: Callable[[], object] = no_op) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self._before_each = before_each

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        self._before_each()
        return func(*args, **(kwargs or {}))
