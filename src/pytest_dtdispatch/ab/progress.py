"""What is said while processes run, with the time left."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """Say on stderr how far a stage is: one line that is written over on a terminal, else one a process."""

    def __init__(self, stage: str, total: int, done: int = 0, stream: TextIO | None = None) -> None:
        self._stage = stage
        self._total = total
        self._done = done
        self._stream = stream or sys.stderr
        self._seconds: list[float] = []
        self._is_terminal = self._stream.isatty()

    def begin(self, side: str) -> None:
        """Say which process runs now; only a terminal hears of it."""
        if self._is_terminal:
            self._say(f"{self._stage}: process {self._done + 1} of {self._total} ({side}){self._left()}")

    def end(self, side: str, seconds: float) -> None:
        """Say that a process is over, and how long the rest will take."""
        self._done += 1
        self._seconds.append(seconds)
        if not self._is_terminal:
            count = f"process {self._done} of {self._total}"
            self._say(f"{self._stage}: {count} ({side}) took {seconds:.1f} s{self._left()}")

    def close(self) -> None:
        """Leave an empty line where the next word goes."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _left(self) -> str:
        remaining = self._total - self._done
        if not self._seconds or not remaining:
            return ""
        return f", about {sum(self._seconds) / len(self._seconds) * remaining:.0f} s left"

    def _say(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()
