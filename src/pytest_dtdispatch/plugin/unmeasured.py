"""What was asked for and not measured: ops by their names, and tests that use the fixture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import pytest

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.resolve import row_nodeid, test_settings
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line

MOST_NAMES = 10
NO_OPS = "no op on DTensors ran in the capture"


class Unmeasured:
    """The globs of ops that tests were measured with, and the tests in which nothing was found.

    Attributes:
        tests: what is said of each such test, by its name.
    """

    def __init__(self) -> None:
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self.tests: dict[str, str] = {}

    def add(self, test: str, settings: Settings) -> None:
        """Note what is asked for in a test, which runs for the first time, or anew."""
        self.tests.pop(test, None)
        for glob in settings.ops:
            self._tests[glob].add(test)

    def note_idle(self, item: pytest.Item, where: str) -> str:
        """Note a capture in which nothing ran; say so as an error where a gate judges what captures find."""
        settings, test = test_settings(item), row_nodeid(item)
        self.tests[test] = f"{test}: {NO_OPS} at {where}"
        limits = KINDS["steps"].limits if settings.metric == "counts" else ()
        is_compared = settings.threshold and item.config.pluginmanager.hasplugin("dtdispatch-saved-run")
        if settings.expected or is_compared or not settings.limits.keys().isdisjoint(limits):
            return f"{where}: {NO_OPS}, so the gate judged nothing"
        return ""

    def unmatched(self, found: Mapping[str, TestResults]) -> Iterator[str]:
        """Name each glob that matches no op, and the ops that ran where it was asked for."""
        for glob, tests in self._tests.items():
            ran = sorted({op for test in tests & found.keys() for op in found[test].ops()})
            if ran and not any(fnmatchcase(op, glob) for op in ran):
                more = f" and {len(ran) - MOST_NAMES} more" if len(ran) > MOST_NAMES else ""
                names = ", ".join(ran[:MOST_NAMES]) + more
                yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"

    def document(self) -> Document:
        """Name the tests in which nothing was found."""
        more = len(self.tests) - MOST_NAMES
        lines = [*self.tests.values()][:MOST_NAMES] + [f"{more} more tests"] * (more > 0)
        return Document(tuple(one_line(Span(f"not measured: {line}", Tone.NOTICE)) for line in lines))
