"""Count the lines of each tool of the package: ``python tools/code_size.py [--write]``.

It counts lines of code: no docstrings, comments, blank lines or imports. ``--write`` replaces the sentence in
``docs/architecture.md``; with ``--check`` the command fails if it is out of date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, PAGE = ROOT / "src" / "pytest_dtdispatch", ROOT / "docs" / "architecture.md"
TOOLS = {
    "an op benchmark": (
        *(
            "rounds",
            "replay",
            "watch",
            "instructions",
            "compiled",
            "compare",
            "comparing",
            "scaling",
            "suite",
        ),
        *("__init__", "extend"),
    ),
    "a step profiler with advice": ("budget", "advice", "lines"),
    "exact counts": ("steps",),
    "A/B runs and gates": ("ab", "gates"),
    "runs of many ranks": ("ranks", "meshes"),
    "the core that they share": ("core", "stats", "errors", "torchapi", "report"),
    "the interfaces to pytest and the shell": ("api", "plugin", "cli", "__main__"),
}
SENTENCE = re.compile(r"The package has [^.]*\.")
MAX_OFF = 200  # lines, so that not every commit changes the page


def code_lines(source: str) -> int:
    """Return the number of lines of code of a module."""
    tree, left_out = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(n not in left_out and not re.match(r"\s*(#|$)", line) for n, line in lines)


def sentence() -> str:
    """Return the sentence with the lines of each tool, to the nearest hundred."""
    lines: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        folder = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        [tool] = [name for name, folders in TOOLS.items() if folder in folders]
        lines[tool] += code_lines(path.read_text(encoding="utf-8"))
    parts = [f"{name} ({round(lines[name], -2):,})" for name in TOOLS]
    whole = f"The package has {round(lines.total(), -2):,} lines of code: "
    return textwrap.fill(f"{whole}{', '.join(parts[:-1])} and {parts[-1]}.", 140)


def numbers(text: str) -> list[int]:
    """Return the numbers in a sentence."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def main() -> None:
    """Print, write or check the sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text, now = PAGE.read_text(encoding="utf-8"), sentence()
    [found] = SENTENCE.findall(text)
    if options.write:
        PAGE.write_text(text.replace(found, now), encoding="utf-8")
    elif options.check and any(
        abs(new - old) > MAX_OFF for new, old in zip(numbers(now), numbers(found), strict=True)
    ):
        sys.exit(f"{PAGE} has: {found}\nnow: {now}\nrun: python tools/code_size.py --write")
    print(now)


if __name__ == "__main__":
    main()
