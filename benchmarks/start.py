"""Measure the plugin's share of pytest's start: processes of ``pytest --co``, with and without it.

Run it on a quiet machine: ``python benchmarks/start.py``. It prints two ratios:

* instructions, counted by callgrind if valgrind is installed: load hardly changes them;
* seconds: the median ratio of pairs of processes, whose order alternates.

It collects one test that does not import torch, since the plugin must not import it either. Byte code is
cached, as for any installed package.
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
# Random hashes change the number of instructions.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONHASHSEED": "0",
}


def collect(folder: str, flags: tuple[str, ...], under: tuple[str, ...] = ()) -> str:
    """Collect in a new process; return its standard error."""
    command = [*under, *COLLECT, *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    return done.stderr


def instructions(folder: str, flags: tuple[str, ...]) -> int:
    """Return the instructions of one process."""
    output = Path(folder, "callgrind.out")
    errors = collect(folder, flags, ("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"))
    # A forked child that fails before exec prints its count first.
    return int(re.findall(r"I +refs: +([\d,]+)", errors)[-1].replace(",", ""))


def seconds(folder: str, flags: tuple[str, ...]) -> float:
    """Return the seconds of one process."""
    start = perf_counter()
    collect(folder, flags)
    return perf_counter() - start


def pair(folder: str, is_first: bool) -> tuple[float, float]:
    """Return the seconds with and without the plugin; the process with it runs first if ``is_first``."""
    if is_first:
        with_plugin = seconds(folder, ())
        return with_plugin, seconds(folder, WITHOUT)
    without = seconds(folder, WITHOUT)
    return seconds(folder, ()), without


def main() -> int:
    """Print both ratios; return 1 if one exceeds the bound, else 0."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        collect(folder, ())  # caches byte code
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
