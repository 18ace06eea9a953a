"""Does the plugin slow pytest's start? Whole processes of ``pytest --co``, with it and without, in turn.

Run it on a quiet machine: ``python benchmarks/start.py``. Printed is the ratio of the medians; tests that
import no torch are collected, since the plugin must not import it either. Byte code is cached, as it is of
any installed package.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

PAIRS = 40
BOUND = 1.02


def collect(folder: str, *flags: str) -> float:
    """Collect in a fresh process, and return its seconds."""
    command = [sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    return perf_counter() - start


def main() -> int:
    """Print the ratio; the exit status is 1 where it is above its bound."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        collect(folder)
        collect(folder, "-p", "no:dtdispatch")
        with_plugin: list[float] = []
        without: list[float] = []
        for pair in range(PAIRS):
            turns = [(with_plugin, ()), (without, ("-p", "no:dtdispatch"))]
            for seconds, flags in turns if pair % 2 else reversed(turns):
                seconds.append(collect(folder, *flags))
    ratio = statistics.median(with_plugin) / statistics.median(without)
    print(
        f"pytest --co, {PAIRS} processes each, in turn: with {statistics.median(with_plugin):.3f} s, "
        f"without {statistics.median(without):.3f} s, ratio {ratio:.3f}; the bound is {BOUND}"
    )
    return 1 if ratio > BOUND else 0


if __name__ == "__main__":
    sys.exit(main())
