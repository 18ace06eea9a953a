"""The object behind the ``dtdispatch`` fixture, as it is where nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.comparing.model import NOT_MEASURED, Compared, Equal, Variants, check_variants
from pytest_dtdispatch.comparing.scaling import Make, Scaling, run_sizes
from pytest_dtdispatch.compiled.model import Compilation, Compiled
from pytest_dtdispatch.core.checks import Setup, call_arguments, check_callable, check_steps
from pytest_dtdispatch.core.parsing import read_argument, read_limit, read_sizes
from pytest_dtdispatch.core.results import Finding
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.core.text import step_name
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.steps.model import StepCalls, Steps, read_calls

__tracebackhide__ = True  # a test that fails here shows its own line
T = TypeVar("T")


class DtDispatch:
    """The measuring object of a test. If nothing is measured, everything runs once and at full speed.

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

    def capture(self) -> AbstractContextManager[ResultStore]:
        """Measure every DTensor op and conversion of a ``with`` block, each signature at its first call.

        Each op returns and changes what one call of it does. Figures start below autograd, where torch asks
        dispatch modes.

        Returns:
            A context manager. Its value has the rows of this test: :meth:`ResultStore.measurements`.

        Raises:
            MeasurementError: a capture or a counted step is open already.
        """
        return nullcontext(ResultStore())

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """Measure a whole callable, end to end from Python, autograd included.

        It is called once for the test, and then once for each sample: on a miss, after every
        sharding-propagation cache was cleared, and on hits. Before each further call, and at the end, these
        are restored: contents and version counters of tensors that it writes to, the ``grad`` of leaves,
        what optimizers keep, and random states. Tensors that the first call made and kept get back the
        contents that it left in them.

        If a tensor cannot be restored, such as a sparse one, or if the callable frees or replaces what a
        tensor held, it runs once, and its row says so. A Python counter, a list or a file changes with each
        sample: ``setup`` can restore it, or make fresh arguments.

        Args:
            fn: what is called.
            *args: its positional arguments.
            name: names the row; by default the function's own name.
            setup: called before each call, untimed. A tuple that it returns replaces ``args``.

        Returns:
            What the first call returned.

        Raises:
            MeasurementError: the name is missing or used by another call of this test, or a capture is open.

        Example:
            >>> DtDispatch().call(pow, 2, 5, name="power")
            32
        """
        check_callable("call", fn, name)
        return self._call(fn, args, name, setup)

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], name: str | None, setup: Setup | None) -> T:
        """Call what can be called."""
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

        Nothing is cleared, repeated or restored: each step is a step of the program. Counts are exact; on a
        fake process group they are the same in every run. If nothing is measured, the step runs once, or once
        with each input. The result has no steps then, and its counts are 0.

        Args:
            step_fn: one step. It takes no arguments, or one of the inputs. Its result is dropped.
            warmup: steps that run first and do not count: 3, or 0 with inputs.
            steps: steps that are counted, one by one: 5, or with inputs all others.
            inputs: an iterable that ends. The step is called with each of them once, in order, such as tokens
                of a decode loop or batches of several shapes. The table has a line for each shape.
            name: names the line; by default the function's own name.

        Returns:
            Counts of each step and of all. ``assert steps.misses_per_step == 0`` fails with a list of what
            missed and why.

        Raises:
            MeasurementError: there is nothing to count, the step takes other arguments, the name is taken by
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
        """Show where the wall time of a step goes: into which parts, phases, modules, lines and ops.

        Undisturbed and profiled steps run alternately, in blocks. Parts come from the profiled steps, and the
        profiler's own cost is subtracted. Two more kinds of steps find that cost on the step itself: Python's
        clock times their ranges once and twice. Undisturbed steps give ``measured_ns`` alone; the parts that
        are missing from it are *unexplained*. Three steps are followed line by line, to find the places.

        Nothing is cleared, repeated or restored: each step is a step of the program. If nothing is measured,
        the step runs once, and the budget is empty.

        Args:
            step_fn: one step. It takes no arguments, and its result is dropped.
            warmup: steps that run first.
            steps: undisturbed steps, and as many of each other kind. Each of 16 blocks begins with one more
                step, and with up to 40 if steps are shorter than 20 ms. Three more find the lines. With 20
                the program makes 124 steps or more after the warm-up.
            name: names the budget; by default the function's own name.

        Returns:
            ``measured_ns``, the median wall time of an undisturbed step; ``parts``, nanoseconds by the name
            of a part; ``unexplained_ns``; and the same time by phase, module, line and op.

        Raises:
            MeasurementError: the step takes arguments, the name is taken by another budget of this test, a
                capture or a counted step is open, or a profiler of torch runs.

        Example:
            >>> budget = DtDispatch().budget(lambda: None)
            >>> budget.measured_ns, budget.parts
            (0.0, {})
        """
        check_steps(step_fn, warmup, steps, name, method="budget")
        return self._budget(step_fn, warmup, steps, name or step_name(step_fn))

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        """Take a budget of a step that has a name."""
        step_fn()
        return Budget(name)

    def compare(
        self, variants: Mapping[str, Callable[[], Any]], *, equal: Equal | None = None, name: str = "compare"
    ) -> Compared:
        """Compare several ways to do the same: first their results, then their cost.

        Each variant is called once for the test, in the given order, from the same random state. In every
        run its result is compared with the first one's, leaf by leaf and bit for bit, DTensors by their full
        value. On a fake process group collectives move no data, so this rank's part is compared.

        If something is measured, the variants then alternate, with one block of calls each in every round. A
        sample is a block's median, and two variants are compared round by round. They differ if the whole
        99.9 % interval of their ratio is more than 3 % from 1. As with :meth:`call`, repetitions leave
        nothing behind.

        Args:
            variants: two or more callables without arguments, by names of your choice. The others are
                compared with the first.
            equal: takes two results, the first variant's first, with plain tensors for DTensors. It returns
                whether they are equal, or raises an AssertionError as ``torch.testing.assert_close`` does.
            name: of the comparison; a row is ``name[variant]``.

        Returns:
            An entry for each variant: ``assert compared["plain"].faster_than("dtensor", by=0.2)``.
            If nothing is measured, ``faster_than`` is true.

        Raises:
            MeasurementError: there are fewer than two variants, or one takes arguments or cannot be called.
            UnequalError: a result differs from the first variant's; the message says where, and by how much.
            MeasurementError: the name is used by another call of this test, or a capture is open.

        Example:
            >>> variants = {"power": lambda: 2**5, "shift": lambda: 1 << 5}
            >>> compared = dtdispatch.compare(variants)             # doctest: +SKIP
            >>> assert compared["shift"].faster_than("power")       # doctest: +SKIP
        """
        check_variants(variants, equal, name)
        return self._compare(Variants(name, dict(variants), equal))

    def _compare(self, requested: Variants) -> Compared:
        """Call each variant once, and compare what they return."""
        from pytest_dtdispatch.comparing.equality import call_variants

        call_variants(requested)
        return Compared(requested.name, tuple(requested.functions), reason=NOT_MEASURED)

    def scaling(
        self,
        make: Make,
        sizes: Iterable[int] = (8, 16, 32, 64),
        *,
        name: str | None = None,
        max_exponent: float | None = None,
    ) -> Scaling:
        """Measure how the cost of a callable grows with a size, on a miss and on a hit.

        Callables are made and called from the largest size down, each once for the test. Then they are
        measured in several passes over all sizes, as :meth:`call` does. Each pass fits an exponent of
        ``cost = constant * size**exponent``, by least squares of logarithms. The result has the median
        exponent, and the smallest and the largest as its interval. Every size has its own row, ``name[8]``.

        Args:
            make: takes a size, and returns a callable without arguments.
            sizes: lengths of a list, mesh dimensions, ranks: two or more.
            name: names the rows; by default the name of ``make``.
            max_exponent: the test fails if the whole interval of the miss or of the hit lies above it, or if
                nothing could be fitted.

        Returns:
            The exponents. If nothing is measured, it has no sizes, and exponents of 0.

        Raises:
            MeasurementError: the sizes or the limit make no sense, or what was made cannot be called.
            MeasurementError: the name is missing or used by another call of this test, or a capture is open.
            GateError: an exponent is above ``max_exponent``, or could not be compared with it.

        Example:
            >>> made = []
            >>> scaling = DtDispatch().scaling(lambda n: lambda: made.append(n), sizes=(2, 4))
            >>> made, scaling.sizes, scaling.miss.exponent
            ([4, 2], (), 0.0)
        """
        check_callable("scaling", make, name)
        checked = read_argument("sizes", sizes, read_sizes, MeasurementError)
        if max_exponent is not None:
            max_exponent = read_argument("max_exponent", max_exponent, read_limit, MeasurementError)
        return self._scaling(make, checked, name, max_exponent)

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        """Take a scaling whose sizes rise."""
        return run_sizes(make, sizes, name)

    def record(self, *results: Finding) -> None:
        """Keep results of your own with those of this test. They are shown, written and judged as ours are.

        Their kind is registered once, in ``conftest.py``, by ``pytest_dtdispatch.extend.register_kind``.
        If nothing is measured, nothing is kept or judged.

        Args:
            *results: each with a ``kind`` and a ``name``, and with methods ``rows()`` and ``metrics()`` as
                :class:`pytest_dtdispatch.core.results.Finding` has them.

        Raises:
            MeasurementError: no such kind is registered, or the name is taken by another result of this test.
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

        It is called once for the test, uncompiled. Each round then has a cold compile with every cache empty,
        a warm compile with caches of compiled code filled, and calls of the compiled and the uncompiled
        function. As with :meth:`call`, repetitions leave nothing behind. Compiled programs are forgotten
        before each compile, also those of other functions: they compile again at their next call.

        Args:
            fn: the function, not compiled yet.
            *args: its positional arguments.
            backend: of torch.compile: a name, or a function that compiles a graph.
            dynamic: as torch.compile takes it.
            fullgraph: as torch.compile takes it; a graph break then fails the test.
            name: names the rows; by default the function's own name.
            setup: called before each call, untimed. A tuple that it returns replaces ``args``.
            others: arguments of further calls, a tuple each. Recompiles that they cause are counted.

        Returns:
            Results of the compiled and the uncompiled calls, and counts of what compiling did.

        Raises:
            MeasurementError: the backend is not available, or there is a graph break with ``fullgraph``.
            MeasurementError: the name is missing or used by another call of this test, or a capture is open.
            GateError: the limit ``recompiles`` or ``graph_breaks`` is exceeded.

        Example:
            >>> DtDispatch().compile(pow, 2, 5, name="power").result
            32
        """
        check_callable("compile", fn, name)
        compilation = Compilation(fn, args, others, setup, backend, dynamic, fullgraph)
        return self._compile(compilation, name)

    def _compile(self, compilation: Compilation, name: str | None) -> Compiled:
        """Call and compile a function."""
        results = compilation.call_all(*call_arguments(compilation.args, compilation.setup))
        return Compiled(results, results)
