"""The method that takes a budget, as it is where nothing is measured."""

from __future__ import annotations

from collections.abc import Callable

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.core.callables import step_name


class Budgeting:
    """What the object behind the fixture takes budgets with."""

    def budget(
        self, step_fn: Callable[[], object], warmup: int = 3, steps: int = 20, *, name: str | None = None
    ) -> Budget:
        """Say where the wall time of a step goes: into which parts, phases, modules, lines and ops.

        Undisturbed steps and steps that torch's profiler times run alternately, block by block. The parts are
        those of the timed steps, less what timing cost. Two more kinds of steps find that cost on the step
        itself: their ranges are timed by the clock of Python alone, put in once and twice. Undisturbed steps
        are used for nothing but ``measured_ns``: what the parts miss of it is *unexplained*. Three steps are
        followed line by line, to learn where in the program the time is spent. Nothing is cleared,
        repeated or put back: each step is a step of the program. Where nothing is measured the step runs
        once, and the budget is empty.

        Args:
            step_fn: one step; takes no arguments. What it returns is dropped.
            warmup: steps that run first.
            steps: steps that are measured undisturbed, and as many of each other kind. Each of 16 blocks
                begins with one step more, and with up to 40 where steps are shorter than 20 ms. Three are run
                to find lines: with 20 the program makes 99 steps or more, and the warm-up.
            name: names the budget; by default the function's own name.

        Returns:
            ``measured_ns``, the median wall time of an undisturbed step; ``parts``, nanoseconds by the name
            of a part; ``unexplained_ns``; and the same time by phase, module, line and op.

        Raises:
            CaptureError: the step takes arguments, the name is taken by another budget of this test, a
                capture or a counted step is open, or a profiler of torch runs.

        Example:
            >>> budget = Budgeting().budget(lambda: None)
            >>> budget.measured_ns, budget.parts
            (0.0, {})
        """
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import check_steps

        check_steps(step_fn, warmup, steps, name, method="budget")
        return self._budget(step_fn, warmup, steps, name or step_name(step_fn))

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        """Take a budget of a step that has a name."""
        __tracebackhide__ = True
        step_fn()
        return Budget(name)
