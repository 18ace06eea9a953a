"""Draw the pictures of the documentation that show output of ours: ``python benchmarks/pictures.py``.

Each is drawn from the text of a real run, which stands in the page beside it, so that both say the same.
``--run`` runs the example of ``docs/reading.md`` first, and puts what it prints into the page: do that where
the table changed. A mark that finds nothing in the text is an error that names it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "pictures"
READING, STEP_TIME = DOCS / "reading.md", DOCS / "step_time.md"
COLUMNS = 116  # of the terminal that the table is printed in
NUMBERED = "#d9730d"
WIDE = 5.93  # of a character in a drawing, in units of it
# What stands in the table for each number of the list in docs/reading.md, as a pattern.
ABOVE = (
    r"signature",
    r"share %",
    r"miss (?:ms|us)",
    r"\+-%",
    r"hit us",
    r"overhead us",
    r"mark",
)
BESIDE = (
    r"^\S+::test_block",
    r"^ +redistributes f32",
    r"^ +\d+ of \d+ rows are proved",
    r"^ +rows explain",
    r"^ +torch \d",
    r"^ +share: ",
)
# Parts of a budget, and their colours; what belongs together is of one kind.
COLOURS = {
    "local": "#8a8f98",
    "dispatch": "#3b82c4",
    "propagation": "#d9730d",
    "redistribution planning": "#1d6b45",
    "redistribution copies": "#2f8f5b",
    "redistribution collectives": "#55b07c",
    "redistribution python": "#86c9a3",
    "wrapping": "#9a5fc0",
    "autograd": "#c2a024",
    "other collectives": "#a0522d",
    "other": "#b9bec6",
}
STYLE = "<style>@media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"


def main() -> int:
    """Draw, and say what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="run the example of docs/reading.md first")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a picture is old")
    asked = parser.parse_args()
    if asked.run:
        put_output(READING, output_of(READING))
    drawn = {
        PICTURES / "table.svg": table_picture(text_after(READING, "table")),
        PICTURES / "budget.svg": budget_picture(
            {name: parts_of(text_after(STEP_TIME, name)) for name in ("before", "after")}
        ),
    }
    old = [path for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    for path in old:
        if not asked.check:
            path.write_text(drawn[path])
        print(f"{'is old' if asked.check else 'drawn'}: {path.relative_to(DOCS.parent)}")
    return int(asked.check and bool(old))


def text_after(page: Path, name: str) -> str:
    """Read the block of text behind a comment of the page: ``<!-- run: table -->``."""
    found = _block(name).search(page.read_text())
    if not found:
        raise SystemExit(f"{page}: no block of text behind <!-- run: {name} -->")
    return found[2]


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- run: {name} -->\n+```text\n)(.*?)(```)", re.DOTALL)


def put_output(page: Path, text: str) -> None:
    """Put what was printed into the page."""
    page.write_text(_block("table").sub(lambda found: f"{found[1]}{text}{found[3]}", page.read_text()))


def output_of(page: Path) -> str:
    """Run the first example of a page, and give the section that it prints, less its frame."""
    example = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert example
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_block.py").write_text(example[1])
        command = [sys.executable, "-m", "pytest", "--dtdispatch", "--benchmark-quiet", "test_block.py"]
        surroundings = {**os.environ, "COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        ran = subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True, check=True
        )
    section = re.search(r"^=+ dtdispatch =+\n(.*?)^=+ ", ran.stdout, re.DOTALL | re.MULTILINE)
    assert section, ran.stdout
    return section[1]


def marks_of(lines: Sequence[str]) -> Iterator[tuple[int, int, float | None]]:
    """Find the line that each number stands at, and the column where it stands above one."""
    for number, pattern in enumerate((*ABOVE, *BESIDE), start=1):
        found = ((at, re.search(pattern, line)) for at, line in enumerate(lines))
        at, match = next(((at, match) for at, match in found if match), (0, None))
        if match is None:
            raise SystemExit(f"number {number}: no line of the text has {pattern!r}")
        is_above = number <= len(ABOVE)
        yield number, at, (match.start() + match.end()) / 2 if is_above else None


def x_of(column: float) -> float:
    """Return the left edge of a column of characters."""
    return 29 + column * WIDE


def y_of(line: float) -> float:
    """Return the base line of a line."""
    return 34 + (line + 1) * 18


def table_picture(text: str) -> str:
    """Draw the output of a run, with numbers at what a reader asks about."""
    lines = text.rstrip("\n").split("\n")
    width = x_of(max(map(len, lines))) + 3
    height = y_of(len(lines)) - 4
    said = (
        "The table that a run of a small block prints, with numbers above its columns and beside its lines; "
        "the list below the picture says what each of them is."
    )
    body = [*_text_lines(lines), *(_badge(*mark) for mark in marks_of(lines))]
    return _svg(width, height, "scrolls", "table", "The table of a run, with numbers", said, body)


def _text_lines(lines: Sequence[str]) -> Iterator[str]:
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="9.9"'
    yield f"<g {font}>"
    for at, line in enumerate(lines):
        for cell in re.finditer(r"\S+(?: \S+)*", line):  # each in its place, whatever the font
            place = f'x="{x_of(cell.start()):g}" y="{y_of(at):g}"'
            wide = f'textLength="{len(cell[0]) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs"'
            yield f"<text {place} {wide}>{escape(cell[0])}</text>"
    yield "</g>"


def _badge(number: int, line: int, column: float | None) -> str:
    x = x_of(column) if column is not None else 14
    y = y_of(line) - (4 if column is None else 23)
    circle = f'<circle cx="{x:g}" cy="{y:g}" r="8.5" fill="{NUMBERED}"/>'
    text = f'<text x="{x:g}" y="{y + 4:g}" fill="#fff" text-anchor="middle" font-weight="bold"'
    return f'{circle}{text} font-family="system-ui, sans-serif" font-size="11">{number}</text>'


Parts = dict[str, float]


def parts_of(text: str) -> Parts:
    """Read the parts of a budget, in microseconds, and what was measured."""
    found = re.findall(r"^  (\w[\w ]*?) +(-?[\d,.]+) +-?[\d.]+%", text, re.MULTILINE)
    return {name: float(number.replace(",", "")) for name, number in found}


def budget_picture(budgets: dict[str, Parts]) -> str:
    """Draw budgets as bars on one scale, and what each part of them is."""
    longest = max(sum(_shown(parts).values()) for parts in budgets.values())
    body: list[str] = []
    y = 8
    for name, parts in budgets.items():
        body.append(_text(0, y + 12, f"{name}: {parts['measured'] / 1000:.1f} ms", 'font-weight="bold"'))
        body.extend(_stacked(parts, y + 20, 420 / longest))
        y += 62
    names = [name for name in COLOURS if any(parts.get(name, 0) > 0 for parts in budgets.values())]
    body.append(_text(420, y + 4, "us", 'text-anchor="end" font-weight="bold"'))
    for name in names:
        y += 22
        values = " → ".join(f"{parts.get(name, 0):,.0f}" for parts in budgets.values())
        body.append(f'<rect x="0" y="{y - 9}" width="14" height="14" fill="{COLOURS[name]}"/>')
        body.append(_text(22, y + 3, name))
        body.append(_text(420, y + 3, values, 'text-anchor="end"'))
    said = "; ".join(
        f"{name} takes {parts['measured']:,.0f} us: "
        + ", ".join(f"{part} {us:,.0f}" for part, us in _shown(parts).items())
        for name, parts in budgets.items()
    )
    return _svg(422, y + 14, "fits", "budget", "Two budgets as bars", said, body)


def _shown(parts: Parts) -> Parts:
    return {name: parts[name] for name in COLOURS if parts.get(name, 0) > 0}


def _stacked(parts: Parts, y: float, scale: float) -> Iterator[str]:
    x = 0.0
    for name, us in _shown(parts).items():
        wide = us * scale
        place = f'x="{x:.1f}" y="{y:g}" width="{max(wide - 1, 0.5):.1f}" height="26"'
        yield f'<rect {place} fill="{COLOURS[name]}"><title>{name}: {us:,.0f} us</title></rect>'
        x += wide


def _text(x: float, y: float, text: str, more: str = "") -> str:
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    return f'<text x="{x:g}" y="{y:g}" {font} {more}>{escape(text)}</text>'


def _svg(
    width: float, height: float, kind: str, name: str, title: str, said: str, body: Sequence[str]
) -> str:
    size = f' width="{width:.0f}" height="{height:.0f}"' if kind == "scrolls" else ""
    labels = f'role="img" aria-labelledby="{name}-title {name}-text"'
    head = (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}"{size} {labels} fill="currentColor" '
        f'xmlns="http://www.w3.org/2000/svg">'
    )
    words = f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-text">{escape(said)}</desc>'
    return "\n".join((head, words, STYLE, *body, "</svg>", ""))


if __name__ == "__main__":
    sys.exit(main())
