"""How often ``dtdispatch ab`` errs on this machine: ``python benchmarks/false_alarms.py --runs 4``.

One interpreter is both sides. Nothing differs, so each row that is called regressed or improved is a false
alarm. What follows ``--`` goes to ``dtdispatch ab``: flags of its rule, or another ``--`` and tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

WENT_WRONG = (2, 5, 130)  # exit statuses of a run that has no verdicts
SHOWN = ("regressed", "improved", "inconclusive", "contaminated")


def main() -> None:
    """Run, count, and print rates with their intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("words", nargs="*", help="of dtdispatch ab")
    options = parser.parse_args()
    verdicts: Counter[str] = Counter()
    processes = confirmed = 0
    for number in range(1, options.runs + 1):
        content = run_ab(options.python, options.words)
        found = Counter(one["verdict"] for one in content["verdicts"])
        verdicts += found
        processes += len(content["processes"])
        confirmed += any(one["stage"] == "confirm" for one in content["processes"])
        print(f"run {number}: {', '.join(f'{count} {name}' for name, count in found.items())}", flush=True)
    print(f"{processes} processes, {options.runs} runs, {confirmed} with a confirmation")
    rows = verdicts.total()
    for name in SHOWN:
        low, high = binomtest(verdicts[name], rows).proportion_ci()
        print(f"{name}: {verdicts[name]} of {rows}, 95 % interval {low:.2%} to {high:.2%}")


def run_ab(python: str, words: list[str]) -> dict[str, list[dict[str, str]]]:
    """Compare an interpreter with itself; return what the file of the run holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ab.json"
        sides = ["--base", python, "--head", python, "--json", str(path)]
        command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides, *words]
        status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
        if status in WENT_WRONG:
            sys.exit(f"dtdispatch ab ended with {status}")
        content: dict[str, list[dict[str, str]]] = json.loads(path.read_text())
        return content


if __name__ == "__main__":
    main()
