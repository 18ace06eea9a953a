"""Say how long measuring takes where that is long: before it begins, if anything is known then."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.core.progress import NOTHING, tell
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.world import read_world

if TYPE_CHECKING:
    import pytest

    from pytest_dtdispatch.plugin.options import Settings

LONG_S = 3.0
CACHE_KEY = "dtdispatch/seconds"
HINT = "; --dtdispatch-rounds auto takes less"

Announce = Callable[[str], None]


def _say_nothing(text: str) -> None:
    """Stand in for a terminal where there is none."""


@dataclass
class Waiting:
    """What is said of one test while it is measured, a line at the most of each call and one of all captures.

    Example:
        >>> waiting = Waiting("test_it.py::test_a", print, last_s=13.4)
        >>> waiting.begin_capture()
        measuring test_it.py::test_a took 13 s the last time
        >>> waiting.begin_call("step", 13, 7.2)
        measuring 'step' of test_it.py::test_a may take 7 s: 13 calls as long as its first
    """

    test: str = ""
    announce: Announce = _say_nothing
    last_s: float = 0.0  # that its captures took the last time
    hint: str = ""  # what is added of captures
    captured_s: float = 0.0  # that they took so far
    was_said: bool = False

    def begin_call(self, name: str, calls: int, seconds: float) -> None:
        """Say of a call how long its repetitions may take, where that is long."""
        if seconds >= LONG_S:
            self.announce(
                f"measuring {name!r} of {self.test} may take {seconds:.0f} s: "
                f"{calls} calls as long as its first"
            )

    def begin_capture(self) -> None:
        """Say how long the captures of the test took the last time, where that was long."""
        if self.last_s >= LONG_S:
            self._say_once(f"took {self.last_s:.0f} s the last time")

    def measured(self, seconds: float) -> None:
        """Add to what the captures took, and say when it gets long, unless it was foretold."""
        self.captured_s += seconds
        if self.captured_s >= LONG_S:
            self._say_once(f"takes more than {LONG_S:.0f} s")

    def _say_once(self, what: str) -> None:
        if not self.was_said:
            self.was_said = True
            self.announce(f"measuring {self.test} {what}{self.hint}")


def waiting_for(config: pytest.Config, test: str, settings: Settings) -> Waiting:
    """Give what is said of one test."""
    has_less = settings.metric == "time" and not settings.stops_when_enough
    last_s = _remembered(_cache(config)).get(test, 0.0)
    return Waiting(test, _announcer(config), last_s, HINT if has_less else "")


def remember(config: pytest.Config, test: str, seconds: float) -> None:
    """Note for the next run what the captures of a test took, where that is long."""
    cache = _cache(config)
    remembered = _remembered(cache)
    was_long = remembered.pop(test, None) is not None
    if seconds >= LONG_S:
        remembered[test] = round(seconds, 3)
    if cache is not None and (was_long or seconds >= LONG_S):
        cache.set(CACHE_KEY, remembered)


def _cache(config: pytest.Config) -> Any:
    """Give the cache of pytest to the first rank."""
    return getattr(config, "cache", None) if read_world(os.environ).is_first else None


def _remembered(cache: Any) -> dict[str, float]:
    found = cache.get(CACHE_KEY, {}) if cache is not None else {}
    if not isinstance(found, dict):  # the file can be anything
        return {}
    return {test: float(seconds) for test, seconds in found.items() if isinstance(seconds, (int, float))}


def _announcer(config: pytest.Config) -> Announce:
    """Give what writes a line to the terminal at once, whatever captures the output of tests."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0 or not read_world(os.environ).is_first:
        return _say_nothing
    capturing: Any = config.pluginmanager.get_plugin("capturemanager")

    def announce(text: str) -> None:
        tell(NOTHING)  # what stands on the line goes first
        with capturing.global_and_fixture_disabled() if capturing else nullcontext():
            reporter.ensure_newline()
            reporter.write_line(f"dtdispatch: {printable(text)}")
            reporter.flush()

    return announce
