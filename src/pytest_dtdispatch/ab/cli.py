"""``dtdispatch ab``: command line and exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtdispatch.ab.process import stopping_handled_by
from pytest_dtdispatch.ab.report import (
    error_commands_of,
    exit_status,
    pasted_text,
    run_document,
    verdicts_text,
)
from pytest_dtdispatch.ab.rule import MAX_SHARE
from pytest_dtdispatch.ab.run import SIDES, Request, default_rule, judge_runs, measure_runs, read_folder
from pytest_dtdispatch.ab.values import Metric
from pytest_dtdispatch.core.files import checked_target, write_atomic
from pytest_dtdispatch.core.parsing import read_choice, read_count, read_decimal, read_file, read_seconds
from pytest_dtdispatch.core.results import plain_name
from pytest_dtdispatch.core.text import nearest, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import Document, Verbatim
from pytest_dtdispatch.report.screen import say, show

RULE_OPTIONS = ("control", "threshold", "floor_hit", "floor_miss")
VERDICTS_FORMAT = "pytest-dtdispatch ab verdicts"


def read_percent(text: str) -> float:
    """Parse a percentage into a fraction."""
    try:
        fraction = read_decimal(text.removesuffix("%")) / 100 if text.endswith("%") else 0.0
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= MAX_SHARE:
        raise ValueError("a percentage above 0%, such as 7.5%")
    return fraction


def read_floors(text: str) -> dict[str, float]:
    """Parse ``hit=7.5%,miss=10%`` into fields of a rule."""
    floors: dict[str, float] = {}
    for part in text.split(","):
        state, equals, value = part.partition("=")
        if state not in ("hit", "miss") or not equals or f"floor_{state}" in floors:
            raise ValueError("floors of hit and miss, such as hit=7.5%,miss=10%")
        try:
            floors[f"floor_{state}"] = read_percent(value)
        except ValueError as error:
            raise ValueError(f"floors: {value!r} is not {error}") from None
    return floors


def read_control(text: str) -> float:
    """Parse a percentage or ``off``."""
    try:
        return 0.0 if text == "off" else read_percent(text)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None


def read_label(text: str) -> tuple[str, str]:
    """Parse ``base=main`` into a side and its name."""
    side, _, label = text.partition("=")
    if not side or not plain_name(label):
        raise ValueError("SIDE=NAME, such as base=main or head=#123")
    return side, plain_name(label)


def argument_type(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader whose errors argparse reports."""

    def read(text: str) -> Any:
        try:
            return reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {error}") from None

    return read


def read_metric(text: str) -> Metric:
    """Parse the name of a metric."""
    return Metric(read_choice(text, [each.value for each in Metric]))


# Flag, reader, metavar, help.
FLAGS: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("--base", str, "PYTHON", "interpreter of the base"),
    ("--head", str, "PYTHON", "interpreter of the head"),
    ("--base-rev", str, "REV", "commit of the base, in the repository of the current folder"),
    ("--head-rev", str, "REV", "commit of the head"),
    ("--metric", read_metric, "METRIC", "time, counts or instructions (default: time)"),
    ("--threshold", read_percent, "PERCENT", "smallest change of instructions that counts (default: 2%%)"),
    ("--pairs", read_count, "N", "smallest number of pairs of processes (default: 3; others than time: 1)"),
    (
        "--confirm",
        read_count,
        "N",
        "largest number of pairs (default: 8); further pairs (default: counts 1, instructions 2)",
    ),
    ("--floor", read_floors, "FLOORS", "smallest changes of times that count (default: hit=7.5%%,miss=10%%)"),
    ("--control", read_control, "PERCENT", "largest change of plain tensors, or off (default: 3%%)"),
    ("--time-limit", read_seconds, "S", "seconds for one process (default: 300; instructions: 1800)"),
    ("--keep", read_file, "FOLDER", "keep the saved run of each process in a new FOLDER, as it ends"),
    ("--judge", read_file, "FOLDER", "judge saved runs in FOLDER/base and FOLDER/head, without measuring"),
    ("--json", read_file, "FILE", "write the verdicts to FILE"),
)


def add_ab_parser(commands: Any) -> None:
    """Add the subcommand."""
    texts = {
        "usage": """dtdispatch ab --base PYTHON --head PYTHON [OPTIONS] [-- PYTEST ARGUMENTS]
       dtdispatch ab --base-rev REV --head-rev REV [OPTIONS] [-- PYTEST ARGUMENTS]
       dtdispatch ab --judge FOLDER [OPTIONS]""",
        "description": """\
Compare the dispatch cost of interpreters or commits. Each runs the tests in fresh processes,
which take turns on this machine. PYTEST ARGUMENTS choose the tests: by default a part of the suite.""",
        "epilog": """example:
  dtdispatch ab --base-rev main --head-rev HEAD -- tests/test_model.py

exit status:
  0    passed, improved or new
  1    regressed, or missing in the head
  2    invalid command line or file
  3    inconclusive, or nothing compared
  4    contaminated: plain tensors changed too
  5    a process failed; its log is named
  130  interrupted; what was measured is judged""",
    }
    meaning = "compare interpreters or commits, in fresh processes"
    parser = commands.add_parser("ab", help=meaning, argument_default=argparse.SUPPRESS, **texts)
    for flag, reader, metavar, meaning in FLAGS:
        parser.add_argument(flag, type=argument_type(reader), metavar=metavar, help=meaning)
    meaning = "end with a Markdown table to paste into a pull request"
    parser.add_argument("--markdown", action="store_true", help=meaning)
    meaning = "name of a side in the report, such as base=main or head=#123; repeat it"
    label = argument_type(read_label)
    parser.add_argument("--label", action="append", type=label, metavar="SIDE=NAME", help=meaning)
    meaning = "install each commit with pip into a folder of its own, and import it from there"
    parser.add_argument("--install", action="store_true", help=meaning)


def run_ab(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the comparison, print the result, and return the exit status."""
    typed = {name: value for name, value in vars(options).items() if name not in ("command", "version")}
    typed |= typed.pop("floor", {})
    adds_markdown = typed.pop("markdown", False)
    labels = dict(typed.pop("label", ()))
    output: Path | None = typed.pop("json", None)
    unknown = [side for side in labels if side not in SIDES]
    if unknown:
        sides = f"{', '.join(SIDES)}{nearest(unknown[0], SIDES)}"
        raise DtDispatchError(f"--label {unknown[0]}: no side of this run; sides: {sides}")
    if output is not None:
        checked_target(output, rf'\s*\{{\s*"format": *"{VERDICTS_FORMAT}"')
    if arguments:
        typed["arguments"] = tuple(arguments)
    with stopping_handled_by(signal.default_int_handler):  # as Ctrl-C is
        if "judge" in typed:
            folder = typed.pop("judge")
            others = [name for name in typed if name not in (*RULE_OPTIONS, "metric")]
            if others:
                flag = f"--{others[0].replace('_', '-')}" if others[0] != "arguments" else "--"
                raise DtDispatchError(f"--judge {folder}: nothing is measured: leave {flag} out")
            saved = read_folder(folder, typed.get("metric"))
        else:
            saved = measure_runs(_request(typed))
    if saved.is_interrupted and not (saved.base and saved.head):
        raise KeyboardInterrupt
    _check_options(saved.rule.metric, typed)
    rule = replace(saved.rule, **{name: typed[name] for name in RULE_OPTIONS if name in typed})
    judged = judge_runs(saved.base, saved.head, rule)
    if output is not None:
        write_atomic(output, verdicts_text(judged, VERDICTS_FORMAT))
    show(run_document(judged, labels))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in error_commands_of(judged):
            say(line)
    if adds_markdown:
        show(Document((Verbatim(("", *pasted_text(judged, labels).splitlines())),)))
    if saved.is_interrupted:
        raise KeyboardInterrupt
    return exit_status(judged)


def _request(typed: dict[str, Any]) -> Request:
    metric = typed.get("metric", Metric.TIME)
    _check_options(metric, typed)
    fields = {name: typed[name] for name in (*RULE_OPTIONS, "pairs", "confirm") if name in typed}
    try:
        rule = replace(default_rule(metric), **fields)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    base, head = typed.get("base"), typed.get("head")
    revisions = tuple(typed[name] for name in ("base_rev", "head_rev") if name in typed)
    if len(revisions) == 1:
        raise DtDispatchError("--base-rev and --head-rev go together: name both commits")
    if revisions:  # commits may share an interpreter
        base, head = base or head or sys.executable, head or base or sys.executable
    if not base or not head:
        sides = "--base PYTHON --head PYTHON, or --base-rev REV --head-rev REV"
        raise DtDispatchError(f"name both sides: {sides}")
    installs = typed.get("install", False)
    if installs and not revisions:
        raise DtDispatchError(
            "--install is for --base-rev and --head-rev: interpreters have theirs installed"
        )
    limit_s = typed.get("time_limit", 1800.0 if metric == Metric.INSTRUCTIONS else 300.0)
    arguments = typed.get("arguments", ())
    return Request((base, head), revisions, arguments, rule, installs, typed.get("keep"), limit_s)


def _check_options(metric: Metric, typed: dict[str, Any]) -> None:
    """Raise an error for options that do not apply to a metric."""
    of_others = {"floor_hit": Metric.TIME, "floor_miss": Metric.TIME, "threshold": Metric.INSTRUCTIONS}
    for name, valid in of_others.items():
        if name in typed and metric != valid:
            flag = f"--{name.partition('_')[0]}"
            raise DtDispatchError(f"{flag} is for --metric {valid}, and this compares {metric}")
    if metric == Metric.COUNTS and "control" in typed:
        raise DtDispatchError("--control is for --metric time and instructions: counts are exact")
