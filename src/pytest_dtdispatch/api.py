"""Interface of the ``dtdispatch`` fixture, and its implementation if nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.comparing.model import NOT_MEASURED, Compared, Equal, Variants, check_variants
from pytest_dtdispatch.comparing.scaling import Make, Scaling, run_sizes
from pytest_dtdispatch.compiled.model import Compilation, Compiled
from pytest_dtdispatch.core.checks import Setup, call_arguments, check_callable, check_result, check_steps
from pytest_dtdispatch.core.parsing import read_argument, read_limit, read_sizes
from pytest_dtdispatch.core.results import Finding
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.core.text import step_name
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.steps.model import StepCalls, Steps, read_calls
from pytest_dtdispatch.verify.model import Verified

__tracebackhide__ = True  # a test that fails here shows its own line
T = TypeVar("T")


class DtDispatch:
    """Measurements of a test. If nothing is measured, everything runs once and at full speed.

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

        For the program, each op has the result and the effects of a single call. The clock starts below
        autograd, at dispatch modes.

        Returns:
            A context manager. Its value has the rows of this test: :meth:`ResultStore.measurements`.

        Raises:
            MeasurementError: a capture or a counted step is already open.
        """
        return nullcontext(ResultStore())

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """Measure a whole callable, end to end from Python, including autograd.

        It is called once for the test, and then once for each sample: for misses, after every
        sharding-propagation cache was cleared, and for hits. Before each repetition, and at the end, this
        state is restored: contents and version counters of tensors that it writes to, the ``grad`` of leaves,
        the state of optimizers, and random states. Tensors that the first call created and that are still
        alive get their contents after that call.

        If a tensor cannot be restored, such as a sparse one, or if the callable frees or replaces the storage
        of a tensor, it is not repeated, and its row has a note. A Python counter, a list or a file changes
        with each sample: ``setup`` can restore it, or create new arguments.

        Args:
            fn: the callable.
            *args: positional arguments.
            name: name of the row; by default that of the function.
            setup: untimed function that is called before each call. A tuple that it returns replaces
                ``args``.

        Returns:
            The result of the first call.

        Raises:
            MeasurementError: the name is missing or used by another call of this test, or a capture is open.

        Example:
            >>> DtDispatch().call(pow, 2, 5, name="power")
            32
        """
        check_callable("call", fn, name)
        result = self._call(fn, args, name, setup)
        check_result("call", result)
        return result

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], name: str | None, setup: Setup | None) -> T:
        """Call the callable with the arguments of its setup."""
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
        """Count the dispatcher's work in steps: misses with reasons, redistributions, collectives, growth.

        Nothing is cleared, repeated or restored: each step is a step of the program. Counts are exact; on a
        fake process group they are the same in every run. If nothing is measured, the step runs once, or once
        with each input; the result then has no steps, and its counts are 0.

        Args:
            step_fn: step function without arguments, or with one of the inputs. Its result is ignored.
            warmup: number of uncounted steps at the beginning; by default 3, or 0 with inputs.
            steps: number of counted steps; by default 5. With inputs, all steps after the warm-up are
                counted.
            inputs: finite iterable of arguments. The step is called once with each of them, in order, such as
                tokens of a decode loop or batches of several shapes. The table has a line for each shape.
            name: name of the line; by default that of the function.

        Returns:
            Counts of each step and of all steps. A failing ``assert steps.misses_per_step == 0`` lists the
            misses with their reasons.

        Raises:
            MeasurementError: there is nothing to count, the step takes other arguments, the name is used by
                other steps of this test, or a capture is open.
            GateError: a step exceeds a limit of the marker, the flags or the ini file.

        Example:
            >>> DtDispatch().steps(lambda: None).misses_per_step == 0
            True
        """
        return self._steps(read_calls(step_fn, warmup, steps, inputs, name))

    def _steps(self, calls: StepCalls) -> Steps:
        """Run the calls of a step."""
        return calls.run_once()

    def verify(self, step_fn: Callable[[], object], steps: int = 1, *, name: str | None = None) -> Verified:
        """Compare each DTensor op of steps with the same op on full tensors.

        This includes ops of backward and of the optimizer, and redistributions. Before an op runs, the full
        values of its arguments are copied; after it, it runs again on the copies. Results, gradients, random
        states and version counters of the program are those of an unverified step. Collectives must move
        data: use ``--dtdispatch-backend local``, or real ranks, which must all call this. If nothing is
        measured, the steps run and nothing is compared.

        Args:
            step_fn: step function without arguments. Its result is ignored.
            steps: number of steps; by default 1.
            name: name of the result; by default that of the function.

        Returns:
            ``wrong``, the number of wrong ops; ``wrong_ops``; how many of the ``calls`` were ``compared``. A
            failing ``assert verified.wrong == 0`` lists them.

        Raises:
            MeasurementError: the step takes arguments, the name is used by other verified steps of this
                test, a capture or a counted step is open, or the process group is fake.
            GateError: there are more wrong ops than the limit ``wrong``, or nothing was compared.

        Example:
            >>> DtDispatch().verify(lambda: None).wrong == 0
            True
        """
        check_steps(step_fn, 0, steps, name, method="verify")
        return self._verify(step_fn, steps, name or step_name(step_fn))

    def _verify(self, step_fn: Callable[[], object], steps: int, name: str) -> Verified:
        """Run the steps."""
        for _ in range(steps):
            check_result("verify", step_fn())
        return Verified(name, steps)

    def budget(
        self, step_fn: Callable[[], object], warmup: int = 3, steps: int = 20, *, name: str | None = None
    ) -> Budget:
        """Measure the breakdown of a step's wall time by parts, phases, modules, lines and ops.

        Undisturbed and profiled steps run alternately, in blocks. Parts are those of the profiled steps,
        minus the cost of profiling. Two more kinds of steps measure this cost in the step itself: Python's
        clock times their ranges once and twice. Undisturbed steps determine only ``measured_ns``; time that
        the parts do not contain is *unexplained*. Three steps are traced line by line to locate ops.

        Nothing is cleared, repeated or restored: each step is a step of the program. If nothing is measured,
        the step runs once, and the budget is empty.

        Args:
            step_fn: step function without arguments. Its result is ignored.
            warmup: number of steps at the beginning that are not measured; by default 3.
            steps: number of undisturbed steps, and of each other kind; by default 20. Each of 16 blocks
                begins with one more step, or with up to 40 if steps are shorter than 20 ms, and three more
                are traced: 20 steps take at least 124 steps after the warm-up.
            name: name of the budget; by default that of the function.

        Returns:
            ``measured_ns``, the median time of an undisturbed step without its waits for a core; ``parts``,
            nanoseconds by the name of a part; ``unexplained_ns``; and the same time by phase, module, line
            and op.

        Raises:
            MeasurementError: the step takes arguments, the name is used by another budget of this test, a
                capture or a counted step is open, or a profiler of torch is running.

        Example:
            >>> budget = DtDispatch().budget(lambda: None)
            >>> budget.measured_ns, budget.parts
            (0.0, {})
        """
        check_steps(step_fn, warmup, steps, name, method="budget")
        return self._budget(step_fn, warmup, steps, name or step_name(step_fn))

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        """Measure the budget of a step."""
        check_result("budget", step_fn())
        return Budget(name)

    def compare(
        self, variants: Mapping[str, Callable[[], Any]], *, equal: Equal | None = None, name: str = "compare"
    ) -> Compared:
        """Compare variants of a computation: first their results, then their cost.

        Each variant is called once for the test, in order, from the same random state. Its result is compared
        with that of the first variant, leaf by leaf and bit for bit; DTensors by their full value. On a fake
        process group, collectives move no data, so only this rank's part is compared.

        In a run that measures, the variants then alternate, with one block of calls of each in every round. A
        sample is the trimmed mean of a block, and two variants are compared round by round, until they are
        told apart or ``--dtdispatch-max-time`` has passed. They differ if the whole 99.9 % interval of their
        ratio is more than 3 % from 1. As with :meth:`call`, state is restored.

        Args:
            variants: two or more callables without arguments, by label. All others are compared with the
                first.
            equal: function of two results, that of the first variant first, with plain tensors instead of
                DTensors. It returns whether they are equal, or raises an AssertionError like
                ``torch.testing.assert_close``.
            name: name of the comparison; a row is ``name[variant]``.

        Returns:
            An entry for each variant: ``assert compared["plain"].faster_than("dtensor", by=0.2)``.
            If nothing is measured, ``faster_than`` is true.

        Raises:
            MeasurementError: there are fewer than two variants, or one takes arguments or cannot be called.
            UnequalError: a result differs from that of the first variant; the message has the difference.
            MeasurementError: the name is used by another call of this test, or a capture is open.

        Example:
            >>> variants = {"power": lambda: 2**5, "shift": lambda: 1 << 5}
            >>> compared = dtdispatch.compare(variants)             # doctest: +SKIP
            >>> assert compared["shift"].faster_than("power")       # doctest: +SKIP
        """
        check_variants(variants, equal, name)
        return self._compare(Variants(name, dict(variants), equal))

    def _compare(self, requested: Variants) -> Compared:
        """Call each variant once, and compare their results."""
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
        """Measure the growth of the cost of a callable with a size, for misses and for hits.

        A callable is created and called once at each size, the largest first. Then they are measured in
        several passes over all sizes, as by :meth:`call`. Each pass fits the exponent of ``cost = constant *
        size**exponent``, by least squares of logarithms. The result has the median exponent, and the smallest
        and the largest as its interval. Every size has its own row, ``name[8]``.

        Args:
            make: function that takes a size, and returns a callable without arguments.
            sizes: two or more sizes, such as lengths of a list, mesh dimensions or numbers of ranks.
            name: prefix of the rows' names; by default the name of ``make``.
            max_exponent: limit; the test fails if the whole interval of the miss or of the hit is above it,
                or if nothing could be fitted. None for no limit.

        Returns:
            The exponents. If nothing is measured, it has no sizes, and exponents of 0.

        Raises:
            MeasurementError: the sizes or the limit are invalid, or ``make`` did not return a callable.
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
        """Measure the scaling over ascending sizes."""
        return run_sizes(make, sizes, name)

    def record(self, *results: Finding) -> None:
        """Record custom results of this test. They are printed, written and judged like all others.

        Register their kind in ``conftest.py``, by ``pytest_dtdispatch.extend.register_kind``. If nothing is
        measured, nothing is recorded or judged.

        Args:
            *results: results with a ``kind``, a ``name``, and the methods ``rows()`` and ``metrics()`` of
                :class:`pytest_dtdispatch.core.results.Finding`.

        Raises:
            MeasurementError: the kind is not registered, the name is used by another result of this test, a
                metric is not an int, or JSON cannot hold a field.
            GateError: a result exceeds a limit of its kind. All results are recorded.

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
        """Measure the cost of compiling a function, and of calling it compiled.

        It is called once for the test, uncompiled. Each round then has a cold compile with all caches empty,
        a warm compile with filled caches of compiled code, and calls of the compiled and the uncompiled
        function. As with :meth:`call`, state is restored. ``torch.compiler.reset`` runs before each compile,
        so that other compiled functions are compiled again at their next call.

        Args:
            fn: uncompiled function.
            *args: positional arguments.
            backend: backend of torch.compile: a name, or a function that compiles a graph.
            dynamic: ``dynamic`` of torch.compile.
            fullgraph: ``fullgraph`` of torch.compile; if true, a graph break fails the test.
            name: name of the rows; by default that of the function.
            setup: untimed function that is called before each call. A tuple that it returns replaces
                ``args``.
            others: arguments of further calls, a tuple each. Recompiles that they cause are counted.

        Returns:
            Results of the compiled and the uncompiled calls, and counts of the compile.

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
        """Call a function uncompiled, as nothing is measured."""
        results = compilation.call_all(*call_arguments(compilation.args, compilation.setup))
        return Compiled(results, results)
