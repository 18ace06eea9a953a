"""Say how many inputs were tried."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line with the number of inputs of each kind."""
    from tests.fuzz.inputs import TRIED  # late: it looks at the profile that hypothesis was started with

    if TRIED:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(TRIED.items()))
        terminalreporter.write_line(f"fuzzing: {TRIED.total():,} inputs tried: {kinds}")
