"""A clock controlled by a test."""

from __future__ import annotations


class ScriptedClock:
    """Advances by 10 us between two readings, and occasionally by slightly more."""

    def __init__(self) -> None:
        self.step_ns = 10_000
        self._now = 0
        self._looks = 0

    def __call__(self) -> int:
        self._looks += 1
        self._now += self.step_ns + self._looks // 2 % 7
        return self._now

    def wait(self, ns: int) -> None:
        self._now += ns
