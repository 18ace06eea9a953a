"""What does the plugin add to pytest's start? Whole processes of ``pytest --co``, with it and without.

Run it on a quiet machine: ``python benchmarks/start.py``. It prints two ratios, with to without:

* instructions, as callgrind counts them, where valgrind is installed: load hardly changes them;
* seconds: the median ratio of pairs of processes, one of them first in one pair, the other in the next.

A folder of one test that imports no torch is collected, since the plugin must not import it either. Byte code
is cached, as it is of any installed package.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

PAIRS = 30
BOUND = 1.02
COLLECT = (sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider")
WITHOUT = ("-p", "no:dtdispatch")
# Random hashes would make two runs of one command differ.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONHASHSEED": "0",
}


def collect(folder: str, flags: tuple[str, ...], under: tuple[str, ...] = ()) -> str:
    """Collect in a fresh process; return what it wrote to its error stream."""
    command = [*under, *COLLECT, *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    return done.stderr


def instructions(folder: str, flags: tuple[str, ...]) -> int:
    """Count the instructions of one process."""
    output = Path(folder, "callgrind.out")
    said = collect(folder, flags, ("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"))
    # A child that ends before it became another program has said its count first.
    return int(re.findall(r"I +refs: +([\d,]+)", said)[-1].replace(",", ""))


def seconds(folder: str, flags: tuple[str, ...]) -> float:
    """Time one process."""
    start = perf_counter()
    collect(folder, flags)
    return perf_counter() - start


def pair(folder: str, is_first: bool) -> tuple[float, float]:
    """Time two processes, in this order or the other: with the plugin, without it."""
    if is_first:
        with_plugin = seconds(folder, ())
        return with_plugin, seconds(folder, WITHOUT)
    without = seconds(folder, WITHOUT)
    return seconds(folder, ()), without


def main() -> int:
    """Print both ratios; the exit status is 1 where one is above the bound."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        collect(folder, ())  # which leaves byte code
        collect(folder, WITHOUT)
        if shutil.which("valgrind"):
            counts = instructions(folder, ()), instructions(folder, WITHOUT)
            ratios.append(counts[0] / counts[1])
            print(f"instructions: with {counts[0]:,}, without {counts[1]:,}, ratio {ratios[-1]:.4f}")
        else:
            print("instructions: not counted, valgrind is not installed")
        pairs = [pair(folder, turn % 2 == 0) for turn in range(PAIRS)]
    ratios.append(statistics.median(mine / other for mine, other in pairs))
    with_plugin, without = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"seconds: with {with_plugin:.3f}, without {without:.3f}, "
        f"median ratio of {PAIRS} pairs {ratios[-1]:.4f}"
    )
    print(f"pytest --co: the bound is {BOUND}")
    return 1 if max(ratios) > BOUND else 0


if __name__ == "__main__":
    sys.exit(main())
