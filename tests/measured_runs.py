"""Helpers of tests that measure: a call and a capture of few rounds, and a mode that records ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch.core.checks import Setup
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import run_and_measure_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.timing import no_op
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

Make = Callable[..., Any]
FEW = Plan(2, 3)


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
