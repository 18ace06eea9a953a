"""The object behind the ``dtdispatch`` fixture, as it is where nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.compare.model import NOT_MEASURED, Compared, Equal, Variants, check_variants
from pytest_dtdispatch.compiled.model import Compilation, Compiled
from pytest_dtdispatch.core.parsing import read_argument, read_limit, read_sizes
from pytest_dtdispatch.core.results import Finding, TestResults
from pytest_dtdispatch.core.text import step_name
from pytest_dtdispatch.errors import ScalingError
from pytest_dtdispatch.scaling import Make, Scaling, run_sizes
from pytest_dtdispatch.steps.model import StepCalls, Steps, read_calls

if TYPE_CHECKING:
    from pytest_dtdispatch.measuring.guard import Setup

__tracebackhide__ = True  # a test that fails here shows its own line
T = TypeVar("T")
SIZES = (8, 16, 32, 64)


class DtDispatch:
    """What a test measures with; where nothing is measured, everything runs once and at full speed.

    Attributes:
        enabled: whether anything is measured.

    Example:
        >>> dtdispatch = DtDispatch()
        >>> with dtdispatch.capture() as results:
        ...     dtdispatch.call(lambda: 2 + 2, name="sum")
        4
        >>> results.measurements()
        ()
    """

    enabled = False

    def capture(self) -> AbstractContextManager[TestResults]:
        """Measure every DTensor op and conversion of a ``with`` block, each signature at its first call.

        The program does not notice: each op's result and effects are those of one call. Figures start below
        autograd, where torch asks dispatch modes.

        Returns:
            A context manager that gives the results in which :meth:`TestResults.measurements` are kept.

        Raises:
            CaptureError: a capture or a counted step is open already.
        """
        return nullcontext(TestResults())

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """Measure a whole callable, end to end from Python, autograd included.

        It is called once for the test, then again for each sample: on a miss, every sharding-propagation
        cache having been cleared, and on hits. Its result is that of the first call. Before each further
        call, and at the end, these are put back to what they were: the contents and version counters of
        tensors that torch was asked to write to, the ``grad`` of leaves that took part, what optimizers keep,
        and random states. Tensors that the first call made and kept are put back to what it left in them.
        A callable that writes to a tensor that cannot be put back, a sparse one, runs once, and its row says
        so; so does one that frees or replaces what a tensor held. One that changes anything else (a Python
        counter, a list, a file) changes it once for each sample: give ``setup`` to put such state back, or to
        make fresh arguments.

        Args:
            fn: what is called.
            *args: its positional arguments.
            name: names the row; by default the function's own name.
            setup: called before each call, untimed. A tuple that it returns replaces ``args``.

        Returns:
            What the first call returned.

        Raises:
            CaptureError: the name is missing, is taken by another call of this test, or a capture is open.

        Example:
            >>> DtDispatch().call(pow, 2, 5, name="power")
            32
        """
        from pytest_dtdispatch.measuring.guard import check_callable

        check_callable("call", fn, name)
        return self._call(fn, args, name, setup)

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], name: str | None, setup: Setup | None) -> T:
        """Call what can be called."""
        from pytest_dtdispatch.measuring.guard import call_arguments

        return fn(*call_arguments(args, setup))

    def steps(
        self,
        step_fn: Callable[..., object],
        warmup: int | None = None,
        steps: int | None = None,
        *,
        inputs: Iterable[Any] | None = None,
        name: str | None = None,
    ) -> Steps:
        """Count what a step makes the dispatcher do: misses and why, redistributions, collectives, growth.

        Nothing is cleared, repeated or put back: each step is a step of the program. Counts are exact; on a
        fake process group they are the same in every run. Where nothing is measured the step runs once, or
        once with each input, and the result has no steps: its counts are 0.

        Args:
            step_fn: one step; takes no arguments, or one of the inputs. What it returns is dropped.
            warmup: steps that run first, and do not count: 3, with inputs 0.
            steps: steps that are counted, one by one: 5, with inputs the rest of them.
            inputs: what the step is called with, each once and in order, as a decode loop or batches of
                several shapes have them; any iterable that ends. The table has a line for each shape.
            name: names the line; by default the function's own name.

        Returns:
            Counts of each step and of all, to assert on: ``assert steps.misses_per_step == 0`` fails with
            what missed and why.

        Raises:
            CaptureError: there is nothing to count, the step takes other arguments, the name is taken by
                other steps of this test, or a capture is open.
            GateError: a step is over a limit of the marker, the flags or the ini file.

        Example:
            >>> DtDispatch().steps(lambda: None).misses_per_step == 0
            True
        """
        return self._steps(read_calls(step_fn, warmup, steps, inputs, name))

    def _steps(self, calls: StepCalls) -> Steps:
        """Run a step that has a name."""
        return calls.run_once()

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
                to find lines: with 20 the program makes 103 steps or more, and the warm-up.
            name: names the budget; by default the function's own name.

        Returns:
            ``measured_ns``, the median wall time of an undisturbed step; ``parts``, nanoseconds by the name
            of a part; ``unexplained_ns``; and the same time by phase, module, line and op.

        Raises:
            CaptureError: the step takes arguments, the name is taken by another budget of this test, a
                capture or a counted step is open, or a profiler of torch runs.

        Example:
            >>> budget = DtDispatch().budget(lambda: None)
            >>> budget.measured_ns, budget.parts
            (0.0, {})
        """
        from pytest_dtdispatch.measuring.guard import check_steps

        check_steps(step_fn, warmup, steps, name, method="budget")
        return self._budget(step_fn, warmup, steps, name or step_name(step_fn))

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        """Take a budget of a step that has a name."""
        step_fn()
        return Budget(name)

    def compare(
        self, variants: Mapping[str, Callable[[], Any]], *, equal: Equal | None = None, name: str = "compare"
    ) -> Compared:
        """Hold several ways to do the same against each other: first what they give, then what they cost.

        Each variant is called once for the test, in the order given, from the same random state. In every
        run its result is held against the first one's, leaf by leaf: bit for bit, DTensors by their full
        value. On a fake process group, whose collectives move no data, what this rank holds is compared.

        Where something is measured, variants then take turns, one block of calls each in every round. A
        block counts as its median, two variants are compared round by round, and they are told apart where
        the whole interval of their ratio (99.9 %) is more than 3 % from 1. As with :meth:`call`, nothing of
        the repetitions is left behind, and results and effects are those of one call of each.

        Args:
            variants: two or more callables without arguments, by names of your choice; the first is the one
                that the others are held against.
            equal: is given two results, with plain tensors in place of DTensors, the first variant's first.
                It returns whether they are equal, or raises an AssertionError as
                ``torch.testing.assert_close`` does.
            name: of the comparison; a row is ``name[variant]``.

        Returns:
            An entry for each variant: ``assert compared["plain"].faster_than("dtensor", by=0.2)``.
            Where nothing is measured ``faster_than`` holds.

        Raises:
            CompareError: there are fewer than two variants, or one takes arguments or cannot be called.
            UnequalError: a result differs from that of the first variant; says where, and by how much.
            CaptureError: the name is taken by another call of this test, or a capture is open.

        Example:
            >>> variants = {"power": lambda: 2**5, "shift": lambda: 1 << 5}
            >>> compared = dtdispatch.compare(variants)             # doctest: +SKIP
            >>> assert compared["shift"].faster_than("power")       # doctest: +SKIP
        """
        check_variants(variants, equal, name)
        return self._compare(Variants(name, dict(variants), equal))

    def _compare(self, requested: Variants) -> Compared:
        """Call each variant once, and compare what they return."""
        from pytest_dtdispatch.compare.equality import call_variants

        call_variants(requested)
        return Compared(requested.name, tuple(requested.functions), why_not=NOT_MEASURED)

    def scaling(
        self,
        make: Make,
        sizes: Iterable[int] = SIZES,
        *,
        name: str | None = None,
        max_exponent: float | None = None,
    ) -> Scaling:
        """Measure how the cost of a callable grows with a size, on a miss and on a hit.

        Callables are made and called from the largest size down, each once for the test; then each of them
        again for each sample, in several passes over all sizes, as :meth:`call` does. Each pass gives an
        exponent of ``cost = constant * size**exponent`` by least squares on logarithms. The result has their
        median, and their least and greatest as its interval. Every size is a row of its own, ``name[8]``.

        Args:
            make: given a size, returns what is called without arguments.
            sizes: lengths of a list, mesh dimensions, ranks: two or more.
            name: names the rows; by default the name of ``make``.
            max_exponent: the test fails where the whole interval of the miss or of the hit lies above it, and
                where nothing could be fitted.

        Returns:
            The exponents. Where nothing is measured it has no sizes, and exponents of 0.

        Raises:
            ScalingError: the sizes or the limit make no sense, or what was made cannot be called.
            CaptureError: the name is missing, is taken by another call of this test, or a capture is open.
            GateError: an exponent is above ``max_exponent``, or could not be held against it.

        Example:
            >>> made = []
            >>> scaling = DtDispatch().scaling(lambda n: lambda: made.append(n), sizes=(2, 4))
            >>> made, scaling.sizes, scaling.miss.exponent
            ([4, 2], (), 0.0)
        """
        from pytest_dtdispatch.measuring.guard import check_callable

        check_callable("scaling", make, name)
        checked = read_argument("sizes", sizes, read_sizes, ScalingError)
        if max_exponent is not None:
            max_exponent = read_argument("max_exponent", max_exponent, read_limit, ScalingError)
        return self._scaling(make, checked, name, max_exponent)

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        """Take a scaling whose sizes rise."""
        return run_sizes(make, sizes, name)

    def record(self, *results: Finding) -> None:
        """Keep results of your own with those of this test: they are shown, written and judged as ours are.

        Their kind is registered once, in ``conftest.py``, by ``pytest_dtdispatch.plugin.gates.register``.
        Where nothing is measured, nothing is kept and nothing judged.

        Args:
            *results: each with a ``kind`` and a ``name``, and with methods ``rows()`` and ``metrics()`` as
                :class:`pytest_dtdispatch.core.results.Finding` has them.

        Raises:
            CaptureError: no such kind is registered, or the name is taken by another result of this test.
            GateError: a result is over a limit of its kind. All of them are kept.

        Example:
            >>> class Blocks:
            ...     kind, name = "blocks", "model"
            ...     def rows(self):
            ...         return ()
            ...     def metrics(self):
            ...         return [("blocks", 12)]
            >>> DtDispatch().record(Blocks())
        """

    def compile(
        self,
        fn: Callable[..., Any],
        *args: Any,
        backend: str | Callable[..., Any] = "inductor",
        dynamic: bool | None = None,
        fullgraph: bool = True,
        name: str | None = None,
        setup: Setup | None = None,
        others: Sequence[tuple[Any, ...]] = (),
    ) -> Compiled:
        """Measure what it costs to compile a function, and to call it compiled.

        It is called once for the test, uncompiled. Then it is compiled in each round: cold (compiled programs
        forgotten, every cache empty), and warm (compiled programs forgotten, caches of compiled code filled);
        and called, compiled and uncompiled. What the first call left behind is left behind, as
        :meth:`call` does. Programs that were compiled before are forgotten: they compile again when called.

        Args:
            fn: the function, not compiled yet.
            *args: its positional arguments.
            backend: of torch.compile: a name, or a function that compiles a graph.
            dynamic: as torch.compile takes it.
            fullgraph: as torch.compile takes it; a graph break then fails the test.
            name: names the rows; by default the function's own name.
            setup: called before each call, untimed. A tuple that it returns replaces ``args``.
            others: tuples of arguments of further calls, made once each; recompiles that they cause are
                counted.

        Returns:
            Results of the compiled and of the uncompiled calls, and counts of what compiling did.

        Raises:
            CompileError: the backend cannot be had, or there is a graph break with ``fullgraph``.
            CaptureError: the name is missing, is taken by another call of this test, or a capture is open.
            GateError: the limit ``recompiles`` or ``graph_breaks`` is exceeded.

        Example:
            >>> DtDispatch().compile(pow, 2, 5, name="power").result
            32
        """
        from pytest_dtdispatch.measuring.guard import check_callable

        check_callable("compile", fn, name)
        compilation = Compilation(fn, args, others, setup, backend, dynamic, fullgraph)
        return self._compile(compilation, name)

    def _compile(self, compilation: Compilation, name: str | None) -> Compiled:
        """Call and compile a function."""
        from pytest_dtdispatch.measuring.guard import call_arguments

        results = compilation.call_all(*call_arguments(compilation.args, compilation.setup))
        return Compiled(results, results)
