"""Ops that were asked for by name, and whether any such op ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.plugin.options import Settings

MOST_NAMES = 10


class AskedOps:
    """The globs of ops that tests were measured with."""

    def __init__(self) -> None:
        self._tests: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, test: str, settings: Settings) -> None:
        """Note what is asked for in a test."""
        for glob in settings.ops:
            self._tests[glob].add(test)

    def unmatched(self, found: Mapping[str, TestResults]) -> Iterator[str]:
        """Name each glob that matches no op, and the ops that ran where it was asked for."""
        for glob, tests in self._tests.items():
            ran = sorted({op for test in tests & found.keys() for op in found[test].ops()})
            if ran and not any(fnmatchcase(op, glob) for op in ran):
                more = f" and {len(ran) - MOST_NAMES} more" if len(ran) > MOST_NAMES else ""
                names = ", ".join(ran[:MOST_NAMES]) + more
                yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"
