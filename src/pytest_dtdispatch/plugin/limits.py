"""Failures of tests by their limits, and by markers that are set too late."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, complaint, unjudged
from pytest_dtdispatch.errors import GateError, RanksError
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.gates import Gates, judged_nothing, limits_text
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.resolve import row_nodeid
from pytest_dtdispatch.plugin.results import RunResults

# Exceptions that may end a test which exceeds a limit: the test fails, is expected to fail, or the run ends.
ENDS = (
    *(GateError, RanksError, pytest.fail.Exception, pytest.xfail.Exception),
    *(pytest.exit.Exception, KeyboardInterrupt),
)


class Limits:
    """Plugin object that fails tests.

    Args:
        gates: gates of the run.
        results: results of its tests.
    """

    def __init__(self, gates: Gates, results: RunResults) -> None:
        self._gates = gates
        self._results = results

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the hooks of xfail
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a phase of a test that caught the error of a limit."""
        if unraised := self._results.store.unraised:
            error = GateError("\n".join(map(str, unraised)))
            error.__traceback__ = unraised[0].__traceback__ or unraised[0].at  # assertRaises clears it
            unraised.clear()
            if call.excinfo is None or not isinstance(call.excinfo.value, ENDS):
                error.__context__ = call.excinfo and call.excinfo.value
                call.excinfo = pytest.ExceptionInfo.from_exception(error)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that passed without a result for one of its limits."""
        result = yield
        self._refuse_late_marker(item)
        if nothing_judged := [*self._nothing_judged(item)]:
            self._results.add_verdicts(nothing_judged)
            raise pytest.fail.Exception(complaint(nothing_judged), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around teardown by fixtures and conftest files
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test whose marker changed during teardown."""
        result = yield
        self._refuse_late_marker(item)
        return result

    def _refuse_late_marker(self, item: pytest.Item) -> None:
        """Fail a test whose marker changed after its settings were read, as the change has no effect."""
        marks, applied = resolve.marks(item), self._results.marks
        if applied is not None and applied != marks:
            self._results.marks = marks
            late = f"{resolve.test_line(item)}: the marker dtdispatch changed after measuring began"
            raise pytest.fail.Exception(f"{late}: set it on the test, or during collection", pytrace=False)

    def _nothing_judged(self, item: pytest.Item) -> Iterator[RowVerdict]:
        """Yield verdicts on the limits of a test that judged nothing."""
        test, store = row_nodeid(item), self._results.store
        settings, of_marker = resolve.test_settings(item), resolve.marker_values(item)
        if not settings.judges:
            return
        limits = settings.limits
        for kind in KINDS.values():
            raised = sorted(name for of, name in store.uncounted if of == kind.name)
            if criterion := limits_text(limits, kind.limits):
                for name in raised:
                    why = "it raised before it left counts"
                    yield unjudged(RowId(test, name), criterion, why, Verdict.MISSING)
            marked = limits_text(of_marker.get("max", {}), kind.limits)
            if marked and not raised and not store.of(kind.name):
                skip_reason = resolve.reason_not_measured(item.config, resolve.test_settings(item))
                yield judged_nothing(RowId(test), marked, kind, skip_reason)
        if self._gates.skip_reason and item.config.getoption("benchmark_compare", None):
            for threshold in of_marker.get("threshold", ()):
                yield unjudged(RowId(test), str(threshold), self._gates.skip_reason)
