"""``dtdispatch ab``, ``aa`` and ``selftest``: what is typed, and what is printed."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.ab import runs
from pytest_dtdispatch.ab.command_flags import (
    FILES,
    METRIC,
    RULE,
    SIDES,
    Option,
    declare,
    refuse_of_another_metric,
    resumable,
    typed_rule,
)
from pytest_dtdispatch.ab.errands import TIME_LIMITS_S, usual_request
from pytest_dtdispatch.ab.model import BASE, HEAD, POOL, TIME, Request, Run
from pytest_dtdispatch.ab.neighbours import Neighbours, NumberNeighbours, compare, compare_exact
from pytest_dtdispatch.ab.number_report import number_document
from pytest_dtdispatch.ab.recording import Recorder, read_run, resumed
from pytest_dtdispatch.ab.report import floors_text, rate_text, result_document, tally_document
from pytest_dtdispatch.ab.worker import Workplace
from pytest_dtdispatch.core.parsing import read_count, read_file
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.screen import say, show

AA_PROCESSES, SELFTEST_PROCESSES = 90, 40
FAILED = 1
RULE_FIELDS = ("floor_", "control", "pairs", "confirm")  # how names of fields of the rule begin
LEAST_CAUGHT = {0.15: 0.95, 0.20: 0.99}
COMMANDS = {
    "ab": "compare two interpreters, or two commits, in fresh processes",
    "aa": "count this machine's false alarms: one interpreter against itself",
    "selftest": "slow dispatch by known amounts; count what is caught",
}


def add_parsers(commands: Any) -> None:
    """Declare the three subcommands."""
    known_pool = ("--pool", read_file, "FILE", "processes that dtdispatch aa --json FILE measured")
    declared: dict[str, tuple[Option, ...]] = {
        "ab": (*SIDES, *METRIC, *RULE),
        "aa": (*_of_pool(AA_PROCESSES), *RULE),
        "selftest": (*_of_pool(SELFTEST_PROCESSES), *RULE, known_pool),
    }
    for name, options in declared.items():
        parser = commands.add_parser(name, help=COMMANDS[name])
        declare(parser, (*options, *FILES))


def _of_pool(processes: int) -> tuple[Option, ...]:
    return (
        ("--python", str, "PYTHON", "interpreter (default: the one that runs this)"),
        ("--processes", read_count, "N", f"in the pool (default: {processes})"),
    )


def obey(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run one of the subcommands."""
    typed = _typed(given, tuple(arguments))
    with resumable(given.json or given.resume):
        return {"ab": _ab, "aa": _aa, "selftest": _selftest}[given.command](given, typed)


def _ab(given: argparse.Namespace, typed: dict[str, Any]) -> int:
    if given.resume:
        known = resumed(given.resume, "ab", typed)
    else:
        known = Run(_sides_of(replace(usual_request(typed.get("metric", TIME)), **typed)), {})
    refuse_of_another_metric(known.asked.metric, typed)
    with _recorded(given, known) as (place, recorder):
        if known.asked.metric != TIME:
            numbers = compare_exact(place, recorder)[BASE, HEAD]
            found: Neighbours | NumberNeighbours = numbers
            document = number_document(recorder.run, numbers.stage, numbers.verdicts)
        else:
            times = compare(place, recorder)[BASE, HEAD]
            found, document = times, result_document(recorder.run, times.stages, times.verdicts)
    show(document)
    return runs.exit_status(found.has_compared, found.verdicts)


def _recorded(
    given: argparse.Namespace, known: Run
) -> contextlib.AbstractContextManager[tuple[Workplace, Recorder]]:
    time_limit_s = given.time_limit or TIME_LIMITS_S[known.asked.metric]
    return runs.recorded(known, time_limit_s, given.json, given.resume)


def _aa(given: argparse.Namespace, typed: dict[str, Any]) -> int:
    known = _known_pool(given, typed, AA_PROCESSES)
    with _recorded(given, known) as (place, recorder):
        pool = runs.run_pool(place, recorder)
    _print_pool(recorder)
    for counts, kinds in runs.false_alarms(pool, known.asked):
        show(tally_document(counts, [str(kind) for kind in kinds]))
    return 0


def _selftest(given: argparse.Namespace, typed: dict[str, Any]) -> int:
    known = _known_pool(given, typed, SELFTEST_PROCESSES)
    with _recorded(given, known) as (place, recorder):
        pool = runs.run_pool(place, recorder)
        _print_pool(recorder)
        say("injected for real, one pair of processes each: median over the rows of a state")
        for share, by_state in runs.inject(place):
            found = ", ".join(f"{state} {ratio:+.1%}" for state, ratio in by_state.items())
            say(f"  +{share:.0%}: {found}")
        spoiled, clean = runs.extra_misses(place)
    is_caught = all(spoiled) and not any(clean)
    say("injected by multiplying one side of windows of the pool; plain tensors are left alone")
    for share in runs.SHARES:
        counts = runs.count_runs(pool, known.asked, share)
        count = counts.found.get(str(Verdict.REGRESSED), 0)
        say(f"  +{share:.0%} caught: {rate_text(count, counts.rows)}")
        is_caught = is_caught and count >= LEAST_CAUGHT.get(share, 0) * counts.rows
    say("injected for real, and counted: one extra miss a step")
    say(f"  caught: {rate_text(sum(spoiled), len(spoiled))}")
    say(f"  false alarms: {rate_text(sum(clean), len(clean))}")
    if is_caught:
        return 0
    least = ", ".join(f"{rate:.0%} of +{share:.0%}" for share, rate in LEAST_CAUGHT.items())
    say(f"failed: at least {least} and every extra miss should be caught: use a quieter machine", Tone.BAD)
    return FAILED


def _known_pool(given: argparse.Namespace, typed: dict[str, Any], processes: int) -> Run:
    """Say what a pool is made of, and which processes of it are there already."""
    pool = getattr(given, "pool", None)
    if pool and given.resume:
        raise DtDispatchError("--pool and --resume: name one; a pool is read and not gone on with")
    if given.resume:
        return resumed(given.resume, "aa", typed)
    if pool:
        what, run = f"--pool {pool}", read_run("--pool", pool, "aa")
        rule = {name: typed[name] for name in typed if name.startswith(RULE_FIELDS)}
        asked = replace(run.asked, **rule, processes=len(run.processes))
    else:
        own = Request(command="aa", processes=processes, base=sys.executable, head=sys.executable)
        what, run, asked = "--processes", Run(own, {}), replace(own, **typed)
    least = 2 * (asked.pairs + asked.confirm)
    if asked.processes < least:
        raise DtDispatchError(
            f"{what}: {asked.processes} processes are too few: one run of the rule takes {least}"
        )
    return replace(run, asked=asked)


def _sides_of(asked: Request) -> Request:
    """Check that two sides are named, by interpreters or by commits; commits may share one interpreter."""
    if bool(asked.base_rev) != bool(asked.head_rev):
        raise DtDispatchError("--base-rev and --head-rev go together: name both commits")
    if asked.base_rev:
        base = asked.base or asked.head or sys.executable
        return replace(asked, base=base, head=asked.head or base)
    if not asked.base or not asked.head:
        raise DtDispatchError(
            "name both sides: --base PYTHON --head PYTHON, or --base-rev REV --head-rev REV"
        )
    return asked


def _typed(given: argparse.Namespace, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Give what was typed, by field; what was not typed is left out."""
    names = ("base", "head", "base_rev", "head_rev")
    typed = {name: value for name in names if (value := getattr(given, name, None)) is not None}
    if getattr(given, "python", None):
        typed |= {"base": given.python, "head": given.python}
    return {**typed, **typed_rule(given, arguments)}


def _print_pool(recorder: Recorder) -> None:
    run = recorder.run
    processes = run.of(POOL)
    rows = len({row for process in processes for row in process.rows if not row.endswith("::local")})
    side = run.sides["base"]
    say(f"{run.asked.base}: Python {side.python}, torch {side.torch}, {side.cpu}")
    say(
        f"pool: {len(processes)} processes in {sum(p.seconds for p in processes):.0f} s, {rows} rows; "
        f"{floors_text(run.asked)}"
    )
