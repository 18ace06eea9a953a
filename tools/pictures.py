"""Draw the picture of two budgets: ``python tools/pictures.py``.

It is drawn from the output of a real run on the same page, so that both show the same figures.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from pytest_dtdispatch.budget.table import family_of
from pytest_dtdispatch.core.events import Part
from pytest_dtdispatch.report import page

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "pictures"
STEP_TIME = DOCS / "step_time.md"
# Colours of the parts, whose families have that of their last part, as on the HTML page of a run.
PAGE_STYLE = Path(page.__file__).with_name("page.css").read_text(encoding="utf-8")
OF_PARTS = zip(Part, re.findall(r"--part\d+: (#\w{6})", PAGE_STYLE), strict=False)
COLOURS = {family_of(part): colour for part, colour in OF_PARTS}
WIDTH, COLUMN = 640, 310  # of the bars, and of each of the two columns of the legend
STYLE = "<style>@media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"


def main() -> int:
    """Draw the pictures, and print the files that changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a picture is out of date"
    )
    options = parser.parse_args()
    drawn = {
        PICTURES / "budget.svg": budget_picture({name: parts_of(name) for name in ("before", "after")}),
    }
    old = [path for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    for path in old:
        if not options.check:
            path.write_text(drawn[path])
        print(f"{'out of date' if options.check else 'drawn'}: {path.relative_to(DOCS.parent)}")
    return int(options.check and bool(old))


Parts = dict[str, float]


def parts_of(name: str) -> Parts:
    """Return the milliseconds of a budget's parts on the page, and of the step, by its name."""
    found = re.search(
        rf": {name} \(budget\)\n  ([\d.]+) ms [^:]*: (.*?)\n  \S", STEP_TIME.read_text(), re.DOTALL
    )
    if not found:
        raise SystemExit(f"{STEP_TIME}: no budget {name!r}")
    whole = float(found[1])
    shares = {part: int(share) for part, share in re.findall(r"(\w[\w ]*?)\s+(-?\d+)%", found[2])}
    return {"measured": whole, **{part: whole * share / 100 for part, share in shares.items()}}


def budget_picture(budgets: dict[str, Parts]) -> str:
    """Return an SVG of budgets as bars on one scale, with a legend."""
    longest = max(sum(_shown(parts).values()) for parts in budgets.values())
    body: list[str] = []
    y = 8
    for name, parts in budgets.items():
        body.append(_text(0, y + 12, f"{name}: {parts['measured']:.1f} ms", 'font-weight="bold"'))
        body.extend(_stacked(parts, y + 20, WIDTH / longest))
        y += 58
    names = [name for name in COLOURS if any(parts.get(name, 0) > 0 for parts in budgets.values())]
    rows = math.ceil(len(names) / 2)
    for number, name in enumerate(names):
        x, line = (COLUMN + 20) * (number // rows), y + 22 * (number % rows) + 12
        values = " → ".join(f"{parts[name]:.1f}" if name in parts else "-" for parts in budgets.values())
        body.append(f'<rect x="{x}" y="{line - 11}" width="14" height="14" fill="{COLOURS[name]}"/>')
        body.append(_text(x + 22, line, name))
        body.append(_text(x + COLUMN, line, f"{values} ms", 'text-anchor="end"'))
    said = "; ".join(
        f"{name} takes {parts['measured']:.1f} ms: "
        + ", ".join(f"{part} {ms:.1f}" for part, ms in _shown(parts).items())
        for name, parts in budgets.items()
    )
    return _svg(WIDTH, y + 22 * rows + 4, "budget", "Two budgets as bars", said, body)


def _shown(parts: Parts) -> Parts:
    return {name: parts[name] for name in COLOURS if parts.get(name, 0) > 0}


def _stacked(parts: Parts, y: float, scale: float) -> Iterator[str]:
    x = 0.0
    for name, ms in _shown(parts).items():
        wide = ms * scale
        place = f'x="{x:.1f}" y="{y:g}" width="{max(wide - 1, 0.5):.1f}" height="26"'
        yield f'<rect {place} fill="{COLOURS[name]}"><title>{name}: {ms:.1f} ms</title></rect>'
        x += wide


def _text(x: float, y: float, text: str, more: str = "") -> str:
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    return f'<text x="{x:g}" y="{y:g}" {font} {more}>{escape(text)}</text>'


def _svg(width: float, height: float, name: str, title: str, said: str, body: Sequence[str]) -> str:
    labels = f'role="img" aria-labelledby="{name}-title {name}-text"'
    head = (
        f'<svg class="fits" viewBox="0 0 {width:.0f} {height:.0f}" {labels} fill="currentColor" '
        f'xmlns="http://www.w3.org/2000/svg">'
    )
    words = f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-text">{escape(said)}</desc>'
    return "\n".join((head, words, STYLE, *body, "</svg>", ""))


if __name__ == "__main__":
    sys.exit(main())
