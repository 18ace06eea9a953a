"""What every method of a measuring fixture needs: names that are free, a place to keep what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch import api
from pytest_dtdispatch.compare.model import Variants
from pytest_dtdispatch.compiled.model import CompilePlan
from pytest_dtdispatch.core.callables import own_name
from pytest_dtdispatch.core.metrics import row_key
from pytest_dtdispatch.core.results import Finding, NamedCall, TestResults, number_name
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import CaptureError, GateError
from pytest_dtdispatch.gates.limits import complaint
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.open_capture import OpenRegions

if TYPE_CHECKING:
    from pytest_dtdispatch.measuring.guard import Measuring
    from pytest_dtdispatch.measuring.plan import Plan


class KeepingDtDispatch(api.DtDispatch):
    """Keep what was measured in the results of the test."""

    enabled = True

    def __init__(
        self,
        plan: Plan,
        ops: tuple[str, ...],
        limits: Mapping[str, int],
        compile_plan: CompilePlan,
        test: str = "",
        is_traced: bool = False,
    ) -> None:
        self.results = TestResults(test)
        self._plan = plan
        self._ops = ops
        self._limits = limits
        self._compile_plan = compile_plan
        self._is_traced = is_traced
        self._open = OpenRegions()

    def close(self) -> list[str]:
        """Close captures that were left open, and refuse those never entered; give where others saw no op."""
        self._open.close()
        return self._open.idle

    def record(self, *results: Finding) -> None:
        """See :meth:`DtDispatch.record`."""
        __tracebackhide__ = True
        for result in results:
            if (kind := getattr(result, "kind", None)) not in KINDS:
                known = ", ".join(KINDS)
                raise CaptureError(f"no kind of results is registered as {kind!r}; valid: {known}")
            self._refuse_taken(result.name, kind=result.kind)
            self.results.add(result)
        self._hold([verdict for each in results for verdict in KINDS[each.kind].judge(each, self._limits)])

    @contextmanager
    def _counted(self, kind: str, name: str) -> Iterator[None]:
        """Remember what raises before it leaves counts, until one of its name leaves some."""
        try:
            yield
        except BaseException as error:
            if error not in self.results.untold:
                self.results.uncounted.add((kind, name))
            raise
        self.results.uncounted.discard((kind, name))

    def _hold(self, verdicts: Sequence[RowVerdict]) -> None:
        """Keep what limits say of results; what fails the test fails it also where it catches the error."""
        __tracebackhide__ = True
        test = self.results.test
        self.results.verdicts += [replace(each, row=number_name(test, each.row)) for each in verdicts]
        if against := complaint(verdicts):
            error = GateError(against)
            self.results.untold.append(error)
            raise error

    @contextmanager
    def _recording(self, name: str) -> Iterator[None]:
        """Let torch's profiler record a region, where a trace was asked for."""
        __tracebackhide__ = True
        if not self._is_traced:
            yield
            return
        from pytest_dtdispatch.torchapi.profiling import recording_trace

        with recording_trace(f"{self.results.test}: {name}", self.results.traces.append):
            yield

    def _row_name(self, usage: str, fn: Callable[..., Any], name: str | None) -> str:
        """Name what a method measures, where it may be measured now and the name is free."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import check_callable

        method = usage.partition("(")[0]
        check_callable(method, fn, name)
        what = f"{method}(name={name!r})"
        self._open.refuse(what, f"{what} inside a capture would be measured twice: close the capture")
        name = name or own_name(fn)
        if name.startswith("<"):
            raise CaptureError(f"a {method} of {name} needs a name: dtdispatch.{usage}")
        self._refuse_taken(name)
        return name

    def _comparison_name(self, asked: Variants) -> str:
        """Name a comparison, where it may be made now and its names are free."""
        __tracebackhide__ = True
        what = f"compare(name={asked.name!r})"
        self._open.refuse(what, f"{what} inside a capture would be measured twice: close the capture")
        self._refuse_taken(asked.name, *asked.row_names)
        return asked.name

    def _refuse_taken(self, *names: str, kind: str = NamedCall.kind) -> None:
        __tracebackhide__ = True
        if not self.results.names_beside(kind).isdisjoint(map(row_key, names)):
            raise CaptureError(
                f"the name {names[0]!r} is taken by another call of this test: give another name="
            )

    def _measuring(self, method: str, name: str, *rows: str) -> Measuring:
        """Take names for rows, meet other ranks, where there are any, and keep other threads away."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import Measuring

        self._refuse_taken(name, *rows)
        if self._plan.agreement is not None:
            self._plan.agreement.come_to(name)
        return Measuring(f"the {method} {name!r} is measured")
