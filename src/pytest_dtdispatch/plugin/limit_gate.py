"""The gate that holds counts against limits: each test as it ends, and then the run."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace

import pytest

from pytest_dtdispatch.core.results import TestResults, number_name
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.errors import GateError, RanksError
from pytest_dtdispatch.gates.limits import complaint, over, unjudged
from pytest_dtdispatch.plugin.gate import Gate
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.resolve import limits_given, marker_values, row_nodeid, test_settings

WHERE = "limits"
XFAIL = "its test is marked to fail (xfail)"
RAISED = "it raised before it left counts"
# What a test may end with although a limit is broken: it fails by it, was told to fail, or the run ends.
ENDS = (
    *(GateError, RanksError, pytest.fail.Exception, pytest.xfail.Exception),
    *(pytest.exit.Exception, KeyboardInterrupt),
)


class LimitGate(Gate):
    """The plugin object that fails tests and the run by limits."""

    def __init__(self, config: pytest.Config, results: Mapping[str, TestResults], why_not: str) -> None:
        self._config = config
        self._results = results
        self._why_not = why_not
        self._unjudged: dict[str, list[RowVerdict]] = {}
        self._xfailed: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around what makes a failure an expected one
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a part of a test that swallowed what a limit raised."""
        test = row_nodeid(item)
        results = self._results.get(test)
        if results is not None and results.untold:
            error = GateError("\n".join(map(str, results.untold)))
            error.__traceback__ = results.untold[0].__traceback__
            results.untold.clear()
            if call.excinfo is None or not isinstance(call.excinfo.value, ENDS):
                error.__context__ = call.excinfo and call.excinfo.value
                call.excinfo = pytest.ExceptionInfo.from_exception(error)
        report = yield
        if hasattr(report, "wasxfail") and report.skipped:
            self._xfailed.add(test)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that passed, and left a limit nothing to judge."""
        unjudged_in_test = self._unjudged[row_nodeid(item)] = []
        result = yield
        unjudged_in_test += self._nothing_judged(item)
        if why := complaint(unjudged_in_test):
            raise pytest.fail.Exception(why, pytrace=False)
        return result

    def _nothing_judged(self, item: pytest.Item) -> Iterator[RowVerdict]:
        """Name the limits of a test that judged nothing in it."""
        test, held_to = row_nodeid(item), test_settings(item).limits
        results = self._results.get(test, TestResults(test))
        of_marker = marker_values(item).get("max", {})
        for kind in KINDS.values():
            limits = ", ".join(f"{limit}={held_to[limit]}" for limit in kind.limits if limit in held_to)
            raised = sorted(name for of, name in results.uncounted if limits and of == kind.name)
            for name in raised:
                yield unjudged(number_name(test, name), limits, RAISED, Verdict.MISSING)
            marked = ", ".join(f"{limit}={of_marker[limit]}" for limit in kind.limits if limit in of_marker)
            if marked and self._why_not:
                yield unjudged(test, marked, self._why_not)
            elif marked and not raised and not results.of(kind.name):
                yield unjudged(test, marked, kind.nothing, Verdict.MISSING)

    def judge(self) -> dict[str, Judgement]:
        """Gather what limits said of tests; not in a worker, nor where tests are only listed."""
        if self._config.getoption("collectonly") or hasattr(self._config, "workerinput"):
            return {}
        verdicts = [*self._idle()]
        failed = over(verdicts)
        for test in dict.fromkeys((*self._results, *self._unjudged)):
            of_test = [*self._results[test].verdicts] if test in self._results else []
            of_test += self._unjudged.get(test, [])
            if test in self._xfailed:
                of_test = [replace(each, details=(*each.details, XFAIL)) for each in of_test]
            else:
                failed += over(of_test)
            verdicts += of_test
        return {WHERE: Judgement(tuple(verdicts), tuple(failed))} if verdicts else {}

    def _idle(self) -> Iterator[RowVerdict]:
        """Name the limits of the command line and the ini file that judged nothing in the whole run."""
        verdict = Verdict.DISABLED if self._why_not else Verdict.MISSING
        for kind in KINDS.values():
            if not any(results.of(kind.name) for results in self._results.values()):
                for given in limits_given(self._config, kind.limits):
                    yield unjudged(given, given, self._why_not or kind.nothing, verdict)
