"""Judge rules on times with recorded processes: ``python benchmarks/gate_rules.py CORPUS.jsonl.gz``.

``gate_corpus.py`` records a corpus. Each process is judged against each other one of the same load, and each
loaded one against each quiet one, as if one were the saved run. Printed for rows by the length of their call,
with 95 % intervals by resampling processes, as pairs are not independent:

* false: rows of one code that fail a run; runs of the 27 rows of ``false_alarms.py`` in which one does;
* improved, inconclusive: such verdicts on rows of one code;
* found: rows that are regressed if the samples of the judged process are multiplied (``+30 %``).

``run again`` is what the product does, which runs tests again: a saved row is the fastest of three
consecutive processes of its load, and a row that fails is judged by the next three processes too, and passes
if it passes once. They are minutes apart, the product's runs seconds.

Pairs with a process whose thread got less than 30 % of a core have tables of their own.

``--recordings 1,2`` selects recordings: choose a rule on two, and report it on the third. ``--old-rule REV``
judges with ``median:20%`` of an older commit too, on ``--old-pairs`` pairs of each table, since one pair
takes a second; its samples are all recorded ones, and it cannot measure again. ``--constants`` prints instead
which classes change without one constant of the rule, and ``--rows`` the rows that ``20%`` judges worst.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gate_corpus import GATED, read_corpus
from pytest_dtdispatch.core.measurement import MIN_PASSES, Clock, Samples, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import FAILING, Threshold, Verdict
from pytest_dtdispatch.gates import times

ROOT = Path(__file__).parents[1]
Key = tuple[str, str]  # row and state
Flags = NDArray[np.uint8]  # by base, head and row
Counts = NDArray[np.float64]  # by base and head
Mask = NDArray[np.bool_]  # by base and head
FALSE, IMPROVED, INCONCLUSIVE, FOUND, JUDGED = (1 << bit for bit in range(5))
LENGTHS_MS = (0.1, 1.5, 6, 10, 30, inf)
MISSES = (State.MISS, State.COLD)
LEAST_SHARE = 0.3  # of a core
RESAMPLES = 400
CHANGED = 0.0005  # share of rows from which --constants prints a class
WORST = 0.1  # share of pairs without an answer from which --rows prints a row
OLD_RULE = Path(__file__).with_name("gate_old_rule.py")


class Rule(NamedTuple):
    """A rule on times.

    Args:
        title: name in tables.
        threshold: of a change.
        planted: factor of the slow-down that it has to find.
        reruns: number of times a failing row is measured again.
        saved: number of processes of which the saved run has the fastest of each row.
    """

    title: str
    threshold: Threshold
    planted: float
    reruns: int = 0
    saved: int = 1


class Variation(NamedTuple):
    """A change of the rule's constants.

    Args:
        title: the changed constant.
        passes: largest number of passes.
        misses: largest number of misses in a pass.
        hits: largest number of hits in a pass.
        cpu_from_ns: length of calls from which CPU time is read.
        max_shift: shift of plain ops above which a row is contaminated.
    """

    title: str = ""
    passes: int = 8
    misses: int = 5
    hits: int = 50
    cpu_from_ns: float = 0
    max_shift: float = times.MAX_SHIFT


RULES = (
    Rule("20%", Threshold("", "min", 0.2), 1.3),
    Rule("20%, run again", Threshold("", "min", 0.2), 1.3, reruns=3, saved=3),
    Rule("median:20%, run again", Threshold("", "median", 0.2), 1.3, reruns=3, saved=3),
    Rule("10%, run again", Threshold("", "min", 0.1), 1.2, reruns=3, saved=3),
)
AS_IT_IS = Variation()
VARIATIONS = (
    *(Variation(f"PASSES = {count}", passes=count) for count in (4, 2, 1)),
    Variation("2 misses and 20 hits in a pass", misses=2, hits=20),
    Variation("1 miss and 10 hits in a pass", misses=1, hits=10),
    Variation("LONG_CALL_NS = 0.5 ms", cpu_from_ns=5e5),
    Variation("LONG_CALL_NS = 1 ms", cpu_from_ns=1e6),
    Variation("LONG_CALL_NS = 6 ms", cpu_from_ns=6e6),
    Variation("no CPU time", cpu_from_ns=inf),
    Variation("MAX_SHIFT = 0.1", max_shift=0.1),
    Variation("no MAX_SHIFT", max_shift=inf),
)


class Reduced(Samples):
    """Samples whose passes are split once; each is a pass of its own."""

    @cached_property
    def _by_clock(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        return super().passes(Clock.WALL), super().passes(Clock.CPU)

    def passes(self, clock: Clock) -> tuple[tuple[float, ...], ...]:
        """Return the passes by a clock."""
        return self._by_clock[clock is Clock.CPU]


@dataclass(eq=False)
class Process:
    """Samples of one recorded process."""

    load: str
    share: float
    samples: Mapping[Key, Samples]
    reduced: dict[tuple[Any, ...], times.TimedRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        passes = {key: [*map(len, each.passes(Clock.WALL))] for key, each in self.samples.items()}
        self.shapes = {key: (len(lengths), min(lengths)) for key, lengths in passes.items()}
        self.figures = {key: each.figure for key, each in self.samples.items()}

    def row(
        self, key: Key, passes: int, calls: int, factor: float = 1.0, cpu_from_ns: float = 0
    ) -> times.TimedRow:
        """Return what the rule reads of a row's first passes: least sample and median of each clock."""
        name = key, passes, calls, factor, cpu_from_ns
        if name not in self.reduced:
            samples = self.samples[key]
            has_cpu = samples.cpu and self.figures[key] >= cpu_from_ns
            clocks = [Clock.WALL, Clock.CPU] if has_cpu else [Clock.WALL]
            wall, *cpu = (least_and_median(samples, clock, passes, calls, factor) for clock in clocks)
            reduced = Reduced(samples.state, wall, cpu=cpu[0] if cpu else ())
            self.reduced[name] = times.TimedRow(RowId(key[0], "", key[1]), reduced)
        return self.reduced[name]


def least_and_median(
    samples: Samples, clock: Clock, passes: int, calls: int, factor: float
) -> tuple[int, ...]:
    """Return the fewest passes that can be judged, with the least sample and the median of all."""
    values = [value for each in samples.passes(clock)[:passes] for value in each[:calls]]
    others = min(passes, MIN_PASSES) - 1
    return round(min(values) * factor), *[round(median(values) * factor)] * others


@dataclass(frozen=True)
class Table:
    """Processes that are judged against each other.

    Args:
        title: loads of bases and heads.
        bases: processes as saved runs.
        heads: processes as later runs.
        mask: judged pairs.
    """

    title: str
    bases: Sequence[Process]
    heads: Sequence[Process]
    mask: Mask

    @property
    def is_of_one_load(self) -> bool:
        """Whether bases and heads are the same processes."""
        return self.bases is self.heads


def main() -> None:
    """Print the table of each load."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--recordings", help="numbers of recordings, such as 1,2; default: all")
    parser.add_argument("--old-rule", metavar="REV", help="commit whose rule is judged too")
    parser.add_argument("--old-pairs", type=int, default=40, help="pairs of each table for that rule")
    parser.add_argument("--constants", action="store_true", help="what changes without each constant")
    parser.add_argument("--rows", action="store_true", help="rows that are judged worst")
    options = parser.parse_args()
    chosen = [int(word) for word in options.recordings.split(",")] if options.recordings else None
    lines = [line for path in options.corpus for line in read_corpus(path)]
    processes = [process_of(line) for line in lines if chosen is None or line["recording"] in chosen]
    keys = judged_rows(processes)
    classes = classes_of(keys, processes)
    for table in tables_of(processes):
        print("\n" + about(table), flush=True)
        if options.constants:
            print_constants(table, keys, classes)
            continue
        if options.rows:
            print_rows(table, keys)
            continue
        found = [(rule.title, rule.planted, table.mask, flags_of(table, keys, rule)) for rule in RULES]
        if options.old_rule:
            title, pairs = f"median:20% of {options.old_rule}", some_pairs(table.mask, options.old_pairs)
            found.append((title, 1.3, pairs, old_flags(table, keys, options.old_rule, pairs)))
        print_rules(table, keys, classes, found)


def process_of(line: Mapping[str, Any]) -> Process:
    """Return a process of a corpus."""
    load = line["load"] if line["ranks"] == 1 else f"{line['load']}, {line['ranks']} ranks"
    samples = {(row["row"], row["state"]): samples_of(row) for row in line["rows"]}
    return Process(load, line["process"]["cpu_share"], samples)


def samples_of(row: Mapping[str, Any]) -> Samples:
    """Return the recorded samples of a row."""
    return Samples(
        State(row["state"]),
        tuple(row["wall"]),
        by_rank=tuple((rank, tuple(values)) for rank, values in row.get("by_rank", ())),
        stat=row.get("stat", "median"),
        waited=row["waited"],
        lengths=tuple(row["lengths"]),
        cpu=tuple(row["cpu"]),
    )


def judged_rows(processes: Sequence[Process]) -> list[Key]:
    """Return the rows and states that the gate judges."""
    every = dict.fromkeys(key for process in processes for key in process.samples)
    return [key for key in every if key[1] != State.LOCAL]


def classes_of(keys: Sequence[Key], processes: Sequence[Process]) -> dict[str, list[int]]:
    """Return the indices of the rows of each class: hits and misses, each by the least length of the call."""
    least = [min(process.figures.get(key, inf) for process in processes) / 1e6 for key in keys]
    classes: dict[str, list[int]] = {}
    for name, are_misses in (("hits", False), ("misses", True)):
        of_kind = [index for index, (_, state) in enumerate(keys) if (state in MISSES) == are_misses]
        classes[name] = of_kind
        low = 0.0
        for high in LENGTHS_MS:
            title = f"{name}, {low:g} ms and more" if high == inf else f"{name}, {low:g} to {high:g} ms"
            classes[title] = [index for index in of_kind if low <= least[index] < high]
            low = high
    return {name: indices for name, indices in classes.items() if indices}


def tables_of(processes: Sequence[Process]) -> Iterator[Table]:
    """Yield the tables of each load against itself and of quiet bases, then those of starved processes."""
    by_load: dict[str, list[Process]] = {}
    for process in processes:
        by_load.setdefault(process.load, []).append(process)
    pairs = [(name, name) for name in by_load]
    pairs += [(base, head) for base in by_load for head in by_load if is_quiet_of(base, head)]
    for base, head in pairs:
        bases, heads = by_load[base], by_load[head]
        fed, others = (np.array([one.share >= LEAST_SHARE for one in side]) for side in (bases, heads))
        every = ~np.eye(len(bases), dtype=bool) if base == head else np.ones((len(bases), len(heads)), bool)
        enough = np.outer(fed, others)
        title = f"{base} against itself" if base == head else f"base {base}, head {head}"
        if (every & enough).any():
            yield Table(title, bases, heads, every & enough)
        if (every & ~enough).any():
            yield Table(f"{title}, less than {LEAST_SHARE:.0%} of a core", bases, heads, every & ~enough)


def is_quiet_of(base: str, head: str) -> bool:
    """Return whether the first load is the quiet one of the second."""
    return base != head and base.split(",")[0] == "quiet" and base.split(",")[1:] == head.split(",")[1:]


def about(table: Table) -> str:
    """Describe a table."""
    shares = [table.bases[i].share for i in np.flatnonzero(table.mask.any(axis=1)).tolist()]
    shares += [table.heads[j].share for j in np.flatnonzero(table.mask.any(axis=0)).tolist()]
    sizes = "" if table.is_of_one_load else f" and {table.mask.any(axis=0).sum()}"
    return (
        f"{table.title}: {table.mask.any(axis=1).sum()}{sizes} processes, {table.mask.sum()} pairs; "
        f"their threads got {min(shares):.0%} to {max(shares):.0%} of a core"
    )


def flags_of(table: Table, keys: Sequence[Key], rule: Rule, variation: Variation = AS_IT_IS) -> Flags:
    """Judge every row of every pair, with and without a planted slow-down."""
    flags = np.zeros((*table.mask.shape, len(keys)), np.uint8)
    for i, j in np.argwhere(table.mask).tolist():
        base, later = table.bases[i], [*table.heads[j:], *table.heads[:j]]
        heads = [head for head in later if head is not base][: 1 + rule.reruns]
        others = [each for each in [*table.bases[i:], *table.bases[:i]] if each not in heads]
        bases = others[: rule.saved]
        shift = plain_shift(base, heads[0])
        shift = shift if shift > variation.max_shift else 0.0
        for index, key in enumerate(keys):
            if key in base.samples and key in heads[0].samples:
                clean, slowed = (
                    verdict_of(fastest(bases, key), heads, key, rule, variation, shift, factor)
                    for factor in (1.0, rule.planted)
                )
                flags[i, j, index] = flags_of_verdicts(clean, slowed)
    return flags


def fastest(processes: Sequence[Process], key: Key) -> Process:
    """Return the process in which a row took least."""
    return min(processes, key=lambda process: process.figures.get(key, inf))


def verdict_of(
    base: Process,
    heads: Sequence[Process],
    key: Key,
    rule: Rule,
    variation: Variation,
    shift: float,
    factor: float,
) -> Verdict:
    """Judge a row of two processes; while it fails, judge the next of the heads."""
    row, verdict = RowId(key[0], "", key[1]), Verdict.MISSING
    for head in (head for head in heads if key in head.samples):
        (passes, calls), (more, others) = base.shapes[key], head.shapes[key]
        passes = min(passes, more, variation.passes)
        calls = min(calls, others, variation.misses if key[1] in MISSES else variation.hits)
        then = base.row(key, passes, calls, 1.0, variation.cpu_from_ns)
        now = head.row(key, passes, calls, factor, variation.cpu_from_ns)
        verdict = times.judge_row(row, then, now, rule.threshold, shift).verdict
        if verdict not in FAILING:
            break
    return verdict


def flags_of_verdicts(clean: Verdict, slowed: Verdict) -> int:
    """Encode the verdicts on a row, and on the same row with a planted slow-down."""
    flags = JUDGED | FALSE * (clean in FAILING) | IMPROVED * (clean is Verdict.IMPROVED)
    return flags | INCONCLUSIVE * (clean is Verdict.INCONCLUSIVE) | FOUND * (slowed is Verdict.REGRESSED)


def plain_shift(base: Process, head: Process) -> float:
    """Return the median shift of the rows on plain tensors, as ``judge_run`` does."""
    both = [key for key in head.figures if key[1] == State.LOCAL and key in base.figures]
    return median(head.figures[key] / base.figures[key] - 1 for key in both) if both else 0.0


def print_rules(
    table: Table,
    keys: Sequence[Key],
    classes: Mapping[str, Sequence[int]],
    found: Sequence[tuple[str, float, Mask, Flags]],
) -> None:
    """Print the rates of each class under each rule, then the false runs."""
    print("| class | rows | rule | false | improved | inconclusive | found |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for name, indices in classes.items():
        for title, planted, mask, flags in found:
            chosen = flags[:, :, indices]
            count = chosen.any(axis=(0, 1)).sum()
            if not count:
                continue
            rates = [
                rate_text(table, mask, counts_of(chosen, bit), counts_of(chosen, JUDGED))
                for bit in (FALSE, IMPROVED, INCONCLUSIVE, FOUND)
            ]
            rates[-1] = f"{planted - 1:+.0%}: {rates[-1]}"
            print(f"| {name} | {count} | {title} | {' | '.join(rates)} |", flush=True)
    gated = [index for index, (row, _) in enumerate(keys) if row.startswith(f"{GATED}::")]
    for title, _, mask, flags in found:
        runs = flags[:, :, gated]
        false, judged = (np.minimum(counts_of(runs, bit), 1) for bit in (FALSE, JUDGED))
        print(
            f"| runs | {len(gated)} | {title} | {rate_text(table, mask, false, judged)} | | | |", flush=True
        )


def counts_of(flags: Flags, bit: int) -> Counts:
    """Return the number of rows of each pair that have a flag."""
    counts: Counts = ((flags & bit) > 0).sum(axis=2).astype(float)
    return counts


def rate_text(table: Table, mask: Mask, count: Counts, total: Counts) -> str:
    """Format a rate over pairs, with the interval of resampled processes."""
    rate, low, high = rate_interval(count * mask, total * mask, table.is_of_one_load)
    return f"{rate:.2%} ({low:.1%} to {high:.1%})"


def rate_interval(count: Counts, total: Counts, is_of_one_load: bool) -> tuple[float, float, float]:
    """Return ``count / total`` summed over pairs, and its 95 % interval by resampling processes.

    Example:
        >>> every = np.ones((3, 3))
        >>> rate_interval(every / 2, every, True)
        (0.5, 0.5, 0.5)
    """
    draw = np.random.default_rng(1).multinomial
    bases, heads = (draw(size, [1 / size] * size, RESAMPLES) for size in total.shape)
    heads = bases if is_of_one_load else heads
    top, bottom = (np.einsum("ri,ij,rj->r", bases, each, heads) for each in (count, total))
    rates = top[bottom > 0] / bottom[bottom > 0]
    low, high = np.quantile(rates, (0.025, 0.975)) if rates.size else (0.0, 1.0)
    return float(count.sum() / max(total.sum(), 1)), float(low), float(high)


def print_constants(table: Table, keys: Sequence[Key], classes: Mapping[str, Sequence[int]]) -> None:
    """Print the classes whose rates change with each variation of the rule on ``20%``."""
    as_it_is = flags_of(table, keys, RULES[0])
    for variation in VARIATIONS:
        with patch("pytest_dtdispatch.gates.times.MIN_PASSES", min(MIN_PASSES, variation.passes)):
            varied = flags_of(table, keys, RULES[0], variation)
        for name, indices in classes.items():
            rates = [rates_of(table.mask, flags[:, :, indices]) for flags in (as_it_is, varied)]
            changed = [
                f"{word} {before:.2%} -> {after:.2%}"
                for word, before, after in zip(("false", "inconclusive", "+30 % found"), *rates, strict=True)
                if abs(after - before) > CHANGED
            ]
            if changed:
                print(f"  {variation.title}: {name}: {', '.join(changed)}", flush=True)


def print_rows(table: Table, keys: Sequence[Key]) -> None:
    """Print the rows with any false verdict, or that are found or judged in too few pairs."""
    flags = flags_of(table, keys, RULES[0])
    for index, (row, state) in enumerate(keys):
        false, inconclusive, found = rates_of(table.mask, flags[:, :, [index]])
        is_judged = flags[:, :, index].any()
        if is_judged and (false or inconclusive > WORST or found < 1 - WORST):
            every = [each for each in (*table.bases, *table.heads) if (row, state) in each.samples]
            passes, calls = (min(each.shapes[row, state][n] for each in every) for n in (0, 1))
            length = min(each.figures[row, state] for each in every) / 1e6
            rates = f"false {false:.1%}, inconclusive {inconclusive:.1%}, +30 % found {found:.1%}"
            at_least = f"at least {passes} passes of {calls}"
            print(f"  {row}::{state}, {length:.3g} ms, {at_least}: {rates}", flush=True)


def rates_of(mask: Mask, flags: Flags) -> list[float]:
    """Return the shares of false, inconclusive and found rows."""
    judged = flags[mask]
    total = max(((judged & JUDGED) > 0).sum(), 1)
    return [float(((judged & bit) > 0).sum() / total) for bit in (FALSE, INCONCLUSIVE, FOUND)]


def some_pairs(mask: Mask, count: int) -> Mask:
    """Return a mask of this many pairs."""
    every = np.argwhere(mask).tolist()
    chosen = np.zeros_like(mask)
    for i, j in random.Random(1).sample(every, min(count, len(every))):
        chosen[i, j] = True
    return chosen


def old_flags(table: Table, keys: Sequence[Key], revision: str, pairs: Mask) -> Flags:
    """Judge pairs with the rule of an older commit, in a process with the source of that commit."""
    flags = np.zeros((*pairs.shape, len(keys)), np.uint8)
    judged = np.argwhere(pairs).tolist()
    sides = [[rows_for_old(process) for process in side] for side in (table.bases, table.heads)]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", revision, "src"], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        answer = subprocess.run(
            [sys.executable, str(OLD_RULE)],
            input=json.dumps({"bases": sides[0], "heads": sides[1], "pairs": judged}),
            env={**os.environ, "PYTHONPATH": str(Path(folder, "src"))},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    indices = {key: index for index, key in enumerate(keys)}
    for (i, j), verdicts in zip(judged, json.loads(answer), strict=True):
        for row, state, clean, slowed in verdicts:
            flags[i, j, indices[row, state]] = flags_of_verdicts(Verdict(clean), Verdict(slowed))
    return flags


def rows_for_old(process: Process) -> list[tuple[str, str, tuple[int, ...], float]]:
    """Return row, state, wall times and share of waits of each row."""
    return [(*key, samples.values, samples.waited) for key, samples in process.samples.items()]


if __name__ == "__main__":
    main()
