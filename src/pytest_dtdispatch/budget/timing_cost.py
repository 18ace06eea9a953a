"""What it costs to time an event: measured beside the step, on a small program that is timed by turns too."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from pytest_dtdispatch.budget.parts import Node
from pytest_dtdispatch.budget.stepping import Step, length_ns, quieter_half, timed_steps, undisturbed_steps
from pytest_dtdispatch.budget.timeline import Cost
from pytest_dtdispatch.torchapi.conversions import Conversion, Converter, wrapped_by
from pytest_dtdispatch.torchapi.marking import Marks

RUNS = 4
WIDTH, ROUNDS, CALLS = 16, 10, 4


class CostOfTiming:
    """Measure what it costs to time an event of torch's, and a range of ours.

    A range is measured among ops, as it stands in a program: in a loop of nothing else it costs a third.
    """

    def __init__(self) -> None:
        converter = Converter(Conversion.WRAP, "reference")
        self._without = _program(_nothing)
        self._with_ranges = _program(wrapped_by(Marks(), converter, _nothing))
        self._bare: list[int] = []
        self._timed: list[Node] = []
        self._ranged: list[Node] = []

    def measure(self) -> None:
        """Take a turn."""
        self._bare += undisturbed_steps(self._without, RUNS)
        self._timed += timed_steps(self._without, RUNS)
        self._ranged += timed_steps(self._with_ranges, RUNS)

    def found(self) -> Cost:
        """Give what was found so far."""
        bare, timed, ranged = (
            statistics.mean(quieter_half(self._bare)),
            *(statistics.mean(quieter_half([*map(length_ns, each)])) for each in (self._timed, self._ranged)),
        )
        event_ns = max(timed - bare, 0.0) / sum(1 for _ in self._timed[0].inner())
        return Cost(event_ns, max((ranged - timed) / (ROUNDS * CALLS), event_ns))


def _program(call: Callable[[object], object]) -> Step:
    """Prepare ops, forward and backward, with calls of a function among them, one behind each op."""
    # No random numbers: the program would notice that some were drawn.
    up, down = (torch.ones(WIDTH, WIDTH, device="cpu", requires_grad=True) for _ in range(2))
    x = torch.ones(WIDTH, WIDTH, device="cpu")

    def program() -> None:
        with torch.enable_grad():
            for _ in range(ROUNDS):
                call(wide := F.linear(x, up))
                call(positive := torch.relu(wide))
                call(y := F.linear(positive, down))
                call(loss := y.sum())
                loss.backward()

    return program


def _nothing(value: object) -> None:
    """Do nothing."""
