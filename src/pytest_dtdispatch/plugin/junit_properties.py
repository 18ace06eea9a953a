"""Results in the file of ``--junitxml``: as properties of its suite, which is where every schema has them.

A property of a test is not valid in ``xunit2``: ``junit-10.xsd`` of Jenkins' xunit plugin, which pytest
writes by, has ``properties`` in ``testsuite`` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _pytest.junitxml import xml_key

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.summary import verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PREFIX = "dtdispatch"


class JunitProperties:
    """The plugin object that adds properties to the suite."""

    def __init__(self, config: pytest.Config, report: Callable[[], ReportedRun]) -> None:
        self._config = config
        self._report = report

    @pytest.hookimpl(tryfirst=True)  # before pytest writes its file
    def pytest_sessionfinish(self) -> None:
        """Add every number of the run, how its gates ended, and where it was taken."""
        xml = self._config.stash.get(xml_key, None)
        if xml is not None:
            for name, value in properties(self._report()):
                xml.add_global_property(name, value)


def properties(run: ReportedRun) -> Iterator[tuple[str, Any]]:
    """Name what is kept of a run, each name on one line, and without what XML cannot have.

    Example:
        >>> list(properties(ReportedRun(environment={"torch version": "2.13.0"})))
        [('dtdispatch.outcome', 'nothing was measured'), ('dtdispatch.environment.torch version', '2.13.0')]
    """
    yield f"{PREFIX}.outcome", verdict_text(run)
    for gate in run.gates:
        yield f"{PREFIX}.gate.{printable(gate.where)}", "failed" if gate.has_failed else "passed"
    for name, text in run.environment.items():
        yield f"{PREFIX}.environment.{printable(name)}", text
    for number in run.metrics():
        yield f"{PREFIX}.{number.metric}.{printable(number.name)}", number.value
