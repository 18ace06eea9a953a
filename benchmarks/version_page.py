"""``docs/versions.md``, drawn from what ``benchmarks/versions.py`` found: tables, and what changed."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.version_notes import NOTES

Data = Mapping[str, Any]
STATES = ("hit", "miss")
# The eight paths of PyTorch; what they are called without what all of them begin with.
PATHS = (
    "detach",
    "to_from_local",
    "collectives",
    "add_backward",
    "inplace",
    "view",
    "random",
    "custom_handler",
)
MARKS = {"improved": " ↓", "regressed": " ↑"}
CHANGES = {"improved": "faster", "regressed": "slower"}
LEAST_COUNT_CHANGE = 0.02  # as fractions: how far counts of one build repeat


def with_tables(page: str, data: Data) -> str:
    """Put every table into a page, between the marks of its name."""
    for name, draw in TABLES.items():
        begin, end = f"<!-- versions: {name} -->\n", "<!-- end -->\n"
        before, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"the page has no {begin.strip()} with an {end.strip()} behind it")
        body = "\n".join(draw(data))
        page = f"{before}{begin}\n{body}\n\n{end}{rest.partition(end)[2]}"
    return page


def versions_of(data: Data) -> list[str]:
    """Every version that anything is known of, the oldest first."""
    known = {*data["probes"], *data["counts"], *data["time"]["versions"]}
    return sorted(known, key=lambda version: [int(part) for part in version.split(".")])


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> Iterator[str]:
    """Lay out a table; all columns but the first are numbers, or all are texts."""
    yield _row(titles)
    yield _row(["---", *("--:" if numbers else "---" for _ in titles[1:])])
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def upgrade(data: Data) -> Iterator[str]:
    """How many times as long a hit and a miss take after an upgrade, by both versions."""
    versions = data["time"]["versions"]
    rows = (
        [
            f"**{base}**",
            *(_ratios(data, base, head) if later else "" for head, later in _later(versions, base)),
        ]
        for base in versions[:-1]
    )
    yield from table(["from \\ to", *versions[1:]], rows)


def _later(versions: Sequence[str], base: str) -> Iterator[tuple[str, bool]]:
    for head in versions[1:]:
        yield head, versions.index(head) > versions.index(base)


def _ratios(data: Data, base: str, head: str) -> str:
    return " / ".join(_times(mean_ratio(data, state, base, head)) for state in STATES)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def mean_ratio(data: Data, state: str, base: str, head: str) -> float | None:
    """Give the geometric mean of a state's figures in two versions, over the rows that both have."""
    rows = [figures[state] for figures in data["time"]["rows"].values() if state in figures]
    logs = [math.log(row[head] / row[base]) for row in rows if base in row and head in row]
    return math.exp(statistics.fmean(logs)) if logs else None


def steps(data: Data) -> Iterator[str]:
    """Say of each version what changed since the one before it."""
    for base, head in pairwise(versions_of(data)):
        yield f"**{base} → {head}**"
        yield ""
        lines = [*_figure_lines(data, base, head), *_count_lines(data, base, head)]
        lines += [*_answer_lines(data, base, head), *_note_lines(data, base, head)]
        yield from (f"* {line}" for line in lines or ["nothing that is looked at here"])
        yield ""


def changed_rows(data: Data, base: str, head: str) -> dict[tuple[str, str], list[tuple[float, str]]]:
    """Give by state and direction the rows that were confirmed to have changed, by how many percent."""
    changed: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for row, state, verdict, percent in data["time"]["verdicts"].get(f"{base} {head}", ()):
        if verdict in CHANGES:
            changed.setdefault((state, CHANGES[verdict]), []).append((percent, row))
    return changed


def _figure_lines(data: Data, base: str, head: str) -> Iterator[str]:
    judged = [one for one in data["time"]["verdicts"].get(f"{base} {head}", ()) if one[1] in STATES]
    for state in STATES:
        of_state = [one for one in judged if one[1] == state]
        parts = [
            _changed_text(change, sorted(rows))
            for change in ("faster", "slower")
            if (rows := changed_rows(data, base, head).get((state, change)))
        ]
        if of_state:
            plural = "misses" if state == "miss" else "hits"
            text = "; ".join(parts) or "no change is confirmed"
            unclear = sum(one[2] == "inconclusive" for one in of_state)
            noisy = f"; {unclear} too noisy to tell" if unclear else ""
            yield f"{plural}, of {len(of_state)} ops: {text}{noisy}"


def _changed_text(change: str, rows: Sequence[tuple[float, str]]) -> str:
    (least, first), (most, last) = rows[0], rows[-1]
    text = f"{len(rows)} {change}, `{first}` by {least:+.0f} %"
    return text if len(rows) == 1 else f"{text} to `{last}` by {most:+.0f} %"


def changed_counts(data: Data, base: str, head: str) -> dict[str, list[tuple[float, str]]]:
    """Give by state the paths whose instructions changed, by how many percent."""
    changed: dict[str, list[tuple[float, str]]] = {}
    before, after = (data["counts"].get(version, {}) for version in (base, head))
    for path in PATHS:
        for state in after.get(path, {}):
            share = after[path][state] / before.get(path, {}).get(state, after[path][state]) - 1
            if abs(share) > LEAST_COUNT_CHANGE:
                changed.setdefault(state, []).append((100 * share, path))
    return changed


def _count_lines(data: Data, base: str, head: str) -> Iterator[str]:
    for state, paths in changed_counts(data, base, head).items():
        texts = (f"`{path}` {percent:+.0f} %" for percent, path in paths)
        yield f"instructions of a {state}: {', '.join(texts)}"


def _answer_lines(data: Data, base: str, head: str) -> Iterator[str]:
    before, after = (data["probes"].get(version, {}) for version in (base, head))
    caches: dict[str, list[str]] = {}
    for name, answers in after.items():
        for asked, answer in answers.items():
            was, now = short(before.get(name, {}).get(asked, answer)), short(answer)
            if was != now and name == "Caches":
                caches.setdefault(f"{was} → **{now}**", []).append(asked)
            elif was != now:
                yield f"{asked}: {was} → **{now}**"
    yield from (f"the cache that answers {'; '.join(asked)}: {change}" for change, asked in caches.items())


def _note_lines(data: Data, base: str, head: str) -> Iterator[str]:
    changes = [(row, *key) for key, rows in changed_rows(data, base, head).items() for _, row in rows] + [
        (f"dtensor_dispatch_{path}", state, "slower" if percent > 0 else "faster")
        for state, paths in changed_counts(data, base, head).items()
        for percent, path in paths
    ]
    for note in NOTES:
        if note.head == head and (not note.state or any(note.explains(*change) for change in changes)):
            yield note.line


def short(answer: str) -> str:
    """Give an answer without its reason."""
    return re.split(r": ", answer, maxsplit=1)[0]


def figures(state: str) -> Callable[[Data], Iterator[str]]:
    """Draw the table of a state: microseconds, with a mark where a version changed."""

    def draw(data: Data) -> Iterator[str]:
        versions = data["time"]["versions"]
        marks = {
            (pair.split()[1], row): MARKS.get(verdict, "")
            for pair, judged in data["time"]["verdicts"].items()
            for row, of_state, verdict, _ in judged
            if of_state == state
        }
        rows = (
            [f"`{row}`", *(_us(of[state].get(v)) + marks.get((v, row), "") for v in versions)]
            for row, of in data["time"]["rows"].items()
            if state in of
        )
        yield from table([f"{state}, us", *versions], rows)

    return draw


def _us(us: float | None) -> str:
    return "-" if us is None else f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def counts(data: Data) -> Iterator[str]:
    """Draw the instruction counts: thousands, of a hit and of a miss."""
    versions = [version for version in versions_of(data) if version in data["counts"]]
    rows = (
        [f"`{path}`, {state}", *(_thousands(data["counts"][v].get(path, {}).get(state)) for v in versions)]
        for state in STATES
        for path in PATHS
        if any(state in data["counts"][v].get(path, {}) for v in versions)
    )
    yield from table(["thousand instructions", *versions], rows)


def _thousands(count: float | None) -> str:
    return "-" if count is None else f"{count / 1000:,.0f}" if count >= 10_000 else f"{count / 1000:.1f}"


def answers(name: str) -> Callable[[Data], Iterator[str]]:
    """Draw the answers of the probes of a class, and list the reasons below."""

    def draw(data: Data) -> Iterator[str]:
        versions = [version for version in versions_of(data) if version in data["probes"]]
        asked = dict.fromkeys(key for v in versions for key in data["probes"][v].get(name, {}))
        of = {key: [data["probes"][v].get(name, {}).get(key, "-") for v in versions] for key in asked}
        rows = ([key, *(_emphasis(short(answer)) for answer in given)] for key, given in of.items())
        yield from table(["", *versions], rows, numbers=False)
        yield ""
        whys = (
            f"{key}: {'; '.join(why)}" for key, given in of.items() if (why := [*_reasons(versions, given)])
        )
        yield from (f"* {why}" for why in whys)

    return draw


def _emphasis(answer: str) -> str:
    return f"**{answer}**" if answer.startswith(("no", "misses", "none")) else answer


def _reasons(versions: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """List reasons, each once, with the versions that gave it."""
    reasons: dict[str, list[str]] = {}
    for version, answer in zip(versions, given, strict=True):
        if ": " in answer:
            reasons.setdefault(answer.split(": ", 1)[1], []).append(version)
    for reason, of in reasons.items():
        yield f"{', '.join(of)}: {reason.rstrip('.')}"


def taken(data: Data) -> Iterator[str]:
    """Say where, when and how often the times were taken."""
    time = data["time"]
    yield (
        f"Times: {time['cpu']}, Python {time['python']}, {time['date']}, {time['processes']} processes of "
        f"{len(time['versions'])} interpreters, by turns."
    )


TABLES: Mapping[str, Callable[[Data], Iterable[str]]] = {
    "upgrade": upgrade,
    "steps": steps,
    "taken": taken,
    "hit": figures("hit"),
    "miss": figures("miss"),
    "caches": answers("Caches"),
    "ours": answers("Ours"),
    "dtensor": answers("DTensor"),
    "counts": counts,
}
