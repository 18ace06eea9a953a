"""Count the lines of code of each mechanism of the package: ``python tools/code_size.py [--write]``.

Lines of code are those without docstrings, comments, blank lines and imports. ``--write`` replaces the table
in ``docs/architecture.md``; with ``--check`` the command fails if the table is out of date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, PAGE = ROOT / "src" / "pytest_dtdispatch", ROOT / "docs" / "architecture.md"
# By layer, from the top: the files of each mechanism. A folder stands for those of its files that no other
# mechanism names.
LAYERS = {
    "commands, benchmarks": {
        "built-in benchmarks": "suite",
        "the command `dtdispatch`": "cli __main__",
    },
    "pytest": {
        "hooks, fixtures, one object of a run": "plugin",
        "settings, resolved once a test": "plugin/settings plugin/resolve",
        "gates of a run": "plugin/gates",
        "pytest-benchmark": "plugin/pytest_benchmark plugin/pytest_internals",
    },
    "interfaces": {
        "public names": "__init__ api extend errors",
        "loops, scripts, `TimeCaptureMode`": "watch",
    },
    "features": {
        "A/B runs": "ab plugin/ab_process",
        "variants of a call, growth with size": "comparing",
        "ops against the same ops on full tensors": "verify torchapi/shards",
        "cost of compiling": "compiled",
        "instructions": "instructions",
        "advice": "advice",
        "budget of a step": "budget",
        "counts of a step": "steps",
        "meshes and process groups": "meshes",
        "runs of many ranks and workers": "ranks plugin/ranks plugin/relaunch plugin/workers",
    },
    "measuring": {
        "source lines": "lines",
        "repeated calls without side effects": "replay",
        "captures and locks": "replay/capture replay/guard",
        "plan, passes of misses and hits, proof, end": "rounds",
        "timed calls": "rounds/timing rounds/sampler",
    },
    "torch, rules, texts": {
        "tables and text": "report",
        "other formats: Markdown, page, files": "report/markdown report/summary report/page report/exports",
        "rules on saved runs": "gates/saved_run gates/times gates/history",
        "expected files": "gates",
        "access to torch: private names, calls, tensors": "torchapi",
        "sharding caches": "torchapi/propagator",
        "hooks in torch": "torchapi/observe torchapi/patches torchapi/missing_api",
    },
    "data": {
        "rows, results, verdicts, saved form": "core",
        "text, files, checks": "core/text core/files core/parsing core/checks core/environment core/trail",
        "statistics": "stats",
    },
}
HEADER = "| layer, from the top | mechanism | files | lines |\n|---|---|---|--:|\n"
TABLE = re.compile(rf"{re.escape(HEADER)}(?:\|.*\n)+")
MAX_OFF = 200  # lines, so that not every commit changes the page


def code_lines(source: str) -> int:
    """Return the number of lines of code of a module."""
    tree, left_out = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(n not in left_out and not re.match(r"\s*(#|$)", line) for n, line in lines)


def lines_by_pattern() -> Counter[str]:
    """Return the lines of code by file or folder of LAYERS; fail if one has no file, or a file has none."""
    patterns = [
        pattern
        for mechanisms in LAYERS.values()
        for files in mechanisms.values()
        for pattern in files.split()
    ]
    lines: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        matching = [each for each in patterns if name == each or name.startswith(f"{each}/")]
        if not matching:
            sys.exit(f"{path} belongs to no mechanism: add it to {__file__}")
        lines[max(matching, key=len)] += code_lines(path.read_text(encoding="utf-8"))
    if missing := [pattern for pattern in patterns if pattern not in lines]:
        sys.exit(f"{', '.join(missing)}: no such file or folder; remove it from {__file__}")
    return lines


def table() -> str:
    """Return the table of mechanisms, which ends with the sum."""
    lines = lines_by_pattern()
    rows = ""
    for layer, mechanisms in LAYERS.items():
        for mechanism, files in mechanisms.items():
            number = sum(lines[pattern] for pattern in files.split())
            names = ", ".join(f"`{pattern}`" for pattern in files.split())
            rows += f"| {layer} | {mechanism} | {names} | {number:,} |\n"
            layer = ""
    return f"{HEADER}{rows}| | all | | {lines.total():,} |\n"


def main() -> None:
    """Print, write or check the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text, now = PAGE.read_text(encoding="utf-8"), table()
    [found] = TABLE.findall(text)
    if options.write:
        PAGE.write_text(text.replace(found, now), encoding="utf-8")
    elif options.check:
        numbers = [
            [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) \|$", rows, re.MULTILINE)]
            for rows in (now, found)
        ]
        if any(abs(new - old) > MAX_OFF for new, old in zip(*numbers, strict=True)):
            sys.exit(f"{PAGE} has:\n{found}\nnow:\n{now}\nrun: python tools/code_size.py --write")
    print(now, end="")


if __name__ == "__main__":
    main()
