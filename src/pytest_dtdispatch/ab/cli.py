"""``dtdispatch ab``: command line and exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.ab.process import stopping_handled_by
from pytest_dtdispatch.ab.report import error_commands_of, exit_status, pasted_text, run_document
from pytest_dtdispatch.ab.rule import PAIRS, Metric, Rule
from pytest_dtdispatch.ab.run import MAX_SHARE, Measured, Request, judge_pairs, measure_run, read_ab_run
from pytest_dtdispatch.core.parsing import read_choice, read_count, read_decimal, read_file, read_seconds
from pytest_dtdispatch.core.results import plain_name
from pytest_dtdispatch.core.text import nearest, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.document import Document, Verbatim
from pytest_dtdispatch.report.screen import say, show

RULE_OPTIONS = ("control", "threshold", "floor_hit", "floor_miss")  # may be changed by --judge


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
    ("--json", read_file, "FILE", "write every sample to FILE, after each process"),
    ("--judge", read_file, "FILE", "judge a file of --json again, without measuring"),
)


def add_ab_parser(commands: Any) -> None:
    """Add the subcommand."""
    texts = {
        "usage": """dtdispatch ab --base PYTHON --head PYTHON [OPTIONS] [-- PYTEST ARGUMENTS]
       dtdispatch ab --base-rev REV --head-rev REV [OPTIONS] [-- PYTEST ARGUMENTS]
       dtdispatch ab --python PYTHON --python PYTHON ... [OPTIONS] [-- PYTEST ARGUMENTS]
       dtdispatch ab --judge FILE [OPTIONS]""",
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
    meaning = "an interpreter; repeat it: each is compared with the first"
    parser.add_argument("--python", action="append", metavar="PYTHON", help=meaning)


def run_ab(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the comparison, print the result, and return the exit status."""
    typed = {name: value for name, value in vars(options).items() if name not in ("command", "version")}
    typed |= typed.pop("floor", {})
    adds_markdown = typed.pop("markdown", False)
    labels = dict(typed.pop("label", ()))
    if arguments:
        typed["arguments"] = tuple(arguments)
    with stopping_handled_by(signal.default_int_handler):  # as Ctrl-C is
        path = typed.pop("judge", None)
        if path:
            run = read_ab_run(path)
            others = [name for name in typed if name not in RULE_OPTIONS]
            if others:
                flag = f"--{others[0].replace('_', '-')}" if others[0] != "arguments" else "--"
                raise DtDispatchError(f"--judge {path}: nothing is measured: leave {flag} out")
            _check_options(run.request.rule.metric, typed)
            rule = replace(run.request.rule, **typed)
            run = replace(run, request=_labelled(replace(run.request, rule=rule), labels))
            measured = Measured(run, judge_pairs(run))
        else:
            request = _labelled(_request(typed), labels)
            default_s = 1800.0 if request.rule.metric == Metric.INSTRUCTIONS else 300.0
            measured = measure_run(request, typed.get("time_limit", default_s), typed.get("json"))
    run, found, is_interrupted = measured
    show(run_document(run, found))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in error_commands_of(run, found):
            say(line)
    if adds_markdown:
        show(Document((Verbatim(("", *pasted_text(run, found).splitlines())),)))
    if is_interrupted:
        raise KeyboardInterrupt
    return exit_status(found)


def _labelled(request: Request, labels: Mapping[str, str]) -> Request:
    unknown = [side for side in labels if side not in request.sides]
    if unknown:
        sides = f"{', '.join(request.sides)}{nearest(unknown[0], request.sides)}"
        raise DtDispatchError(f"--label {unknown[0]}: no side of this run; sides: {sides}")
    return replace(request, labels={**request.labels, **labels})


def _request(typed: dict[str, Any]) -> Request:
    metric = typed.get("metric", Metric.TIME)
    _check_options(metric, typed)
    pairs, confirm = PAIRS[metric]
    fields = {name: typed[name] for name in (*RULE_OPTIONS, "pairs", "confirm") if name in typed}
    rule = Rule(**{"metric": metric, "pairs": pairs, "confirm": confirm, **fields})
    try:
        rule.check_pairs()
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    revisions = tuple(typed[name] for name in ("base_rev", "head_rev") if name in typed)
    pythons, installs = _interpreters(typed, revisions), typed.get("install", False)
    if installs and not revisions:
        raise DtDispatchError(
            "--install is for --base-rev and --head-rev: interpreters have theirs installed"
        )
    return Request(pythons, revisions, typed.get("arguments", ()), rule, installs)


def _interpreters(typed: dict[str, Any], revisions: Sequence[str]) -> tuple[str, ...]:
    """Return the interpreter of each side; commits may share one."""
    base, head = typed.get("base"), typed.get("head")
    pythons = typed.get("python")
    if pythons:
        if base or head or revisions:
            raise DtDispatchError("--python names every side: leave --base, --head and commits out")
        if len(pythons) < 2:
            raise DtDispatchError("name two interpreters or more: --python PYTHON --python PYTHON ...")
        return tuple(pythons)
    if len(revisions) == 1:
        raise DtDispatchError("--base-rev and --head-rev go together: name both commits")
    if revisions:
        return (base or head or sys.executable, head or base or sys.executable)
    if not base or not head:
        raise DtDispatchError(
            "name both sides: --base PYTHON --head PYTHON, or --base-rev REV --head-rev REV; "
            "or several: --python PYTHON --python PYTHON ..."
        )
    return (base, head)


def _check_options(metric: Metric, typed: dict[str, Any]) -> None:
    """Raise an error for options that do not apply to a metric."""
    metric_of = {
        "floor_hit": Metric.TIME,
        "floor_miss": Metric.TIME,
        "threshold": Metric.INSTRUCTIONS,
    }
    for name in typed:
        valid = metric_of.get(name, metric)
        if valid != metric:
            flag = f"--{name.partition('_')[0]}"
            raise DtDispatchError(f"{flag} is for --metric {valid}, and this compares {metric}")
    if metric == Metric.COUNTS and "control" in typed:
        raise DtDispatchError("--control is for --metric time and instructions: counts are exact")
