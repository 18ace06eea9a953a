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
from pytest_dtdispatch.ab.report import exit_status, judgement_of, pasted_text, run_document
from pytest_dtdispatch.ab.rule import DEFAULT_RULES, Rule
from pytest_dtdispatch.ab.run import SIDES, Runner, judge_runs, read_folder
from pytest_dtdispatch.ab.values import Metric, metric_of
from pytest_dtdispatch.core.files import checked_target, write_atomic
from pytest_dtdispatch.core.parsing import read_choice, read_count, read_decimal, read_file, read_seconds
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.data import run_text
from pytest_dtdispatch.report.document import Document, Verbatim
from pytest_dtdispatch.report.exports import FORMATS
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.screen import say, show
from pytest_dtdispatch.report.summary import error_commands

# Fields of the rule that options set, with the metrics that they apply to.
RULE_OPTIONS = {
    "pairs": (*Metric,),
    "confirm": (*Metric,),
    "floor_hit": (Metric.TIME,),
    "floor_miss": (Metric.TIME,),
    "threshold": (Metric.INSTRUCTIONS,),
    "control": (Metric.TIME, Metric.INSTRUCTIONS),
}


def read_percent(text: str) -> float:
    """Parse a percentage into a fraction."""
    most = 10.0
    try:
        fraction = read_decimal(text.removesuffix("%")) / 100 if text.endswith("%") else 0.0
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= most:
        raise ValueError(f"a percentage above 0% and at most {most:.0%}, such as 7.5%")
    return fraction


def read_floors(text: str) -> dict[str, float]:
    """Parse ``hit=7.5%,miss=10%`` into fields of a rule."""
    pairs = [part.split("=") for part in text.split(",")]
    states = sorted(pair[0] for pair in pairs if len(pair) == 2)
    if states not in (["hit"], ["miss"], ["hit", "miss"]) or len(states) < len(pairs):
        raise ValueError("floors of hit and miss, such as hit=7.5%,miss=10%")
    return {f"floor_{state}": read_percent(value) for state, value in pairs}


def read_control(text: str) -> float:
    """Parse a percentage or ``off``."""
    try:
        return 0.0 if text == "off" else read_percent(text)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None


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
    ("--json", read_file, "FILE", "write the verdicts to FILE, as --dtdispatch-export json does"),
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
    meaning = "install each commit with pip into a folder of its own, and import it from there"
    parser.add_argument("--install", action="store_true", help=meaning)


def run_ab(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the comparison, print the result, and return the exit status."""
    typed = {name: value for name, value in vars(options).items() if name not in ("command", "version")}
    typed |= typed.pop("floor", {})
    adds_markdown = typed.pop("markdown", False)
    output: Path | None = typed.pop("json", None)
    if output is not None:
        checked_target(output, FORMATS["json"].begins)
    if arguments:
        typed["arguments"] = tuple(arguments)
    is_interrupted = False
    with stopping_handled_by(signal.default_int_handler):  # as Ctrl-C is
        if "judge" in typed:
            runs, rule = _saved_runs(typed)
        else:
            runner = _runner(typed)
            runs, rule = runner.runs, runner.rule
            try:
                runner.run()
            except KeyboardInterrupt:
                if not all(runs.values()):
                    raise
                is_interrupted = True
    judged = judge_runs(runs["base"], runs["head"], rule)
    judgement = judgement_of(judged)
    if output is not None:
        judged_head = ReportedRun(environment=runs["head"][0].environment, gates=(judgement,))
        write_atomic(output, run_text(judged_head)[0])
    show(run_document(judged))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in error_commands([judgement], {}):
            say(line)
    if adds_markdown:
        show(Document((Verbatim(("", *pasted_text(judged).splitlines())),)))
    if is_interrupted:
        raise KeyboardInterrupt
    return exit_status(judged)


def _saved_runs(typed: dict[str, Any]) -> tuple[dict[str, list[ReportedRun]], Rule]:
    """Read the saved runs of a folder, and return them with the rule of their metric."""
    folder = typed["judge"]
    others = [name for name in typed if name not in (*RULE_OPTIONS, "metric", "judge")]
    if others:
        flag = "--" if others[0] == "arguments" else f"--{others[0].replace('_', '-')}"
        raise DtDispatchError(f"--judge {folder}: nothing is measured: leave {flag} out")
    runs = read_folder(folder)
    found = {metric_of(run) for run in runs["base"]}
    # Runs of times beside counts prove which calls hit.
    metric = next(each for each in (Metric.COUNTS, Metric.INSTRUCTIONS, Metric.TIME) if each in found)
    if metric == Metric.COUNTS and typed.get("metric") == Metric.TIME and runs["base"][0].turn:
        reason = "its runs of times have few samples, which prove hits: leave --metric time out"
        raise DtDispatchError(f"--judge {folder}: {reason}")
    return runs, _rule(typed.get("metric", metric), typed)


def _runner(typed: dict[str, Any]) -> Runner:
    """Return the runner of a comparison that measures."""
    metric = typed.get("metric", Metric.TIME)
    rule = _rule(metric, typed)
    pythons = {side: typed[side] for side in SIDES if side in typed}
    revisions = {side: typed[f"{side}_rev"] for side in SIDES if f"{side}_rev" in typed}
    if len(revisions) == 1:
        raise DtDispatchError("--base-rev and --head-rev go together: name both commits")
    if revisions:  # commits may share an interpreter
        shared = next(iter(pythons.values()), sys.executable)
        pythons = {side: pythons.get(side, shared) for side in SIDES}
    if len(pythons) < len(SIDES):
        sides = "--base PYTHON --head PYTHON, or --base-rev REV --head-rev REV"
        raise DtDispatchError(f"name both sides: {sides}")
    installs = typed.get("install", False)
    if installs and not revisions:
        why = "interpreters have theirs installed"
        raise DtDispatchError(f"--install is for --base-rev and --head-rev: {why}")
    limit_s = typed.get("time_limit", 1800.0 if metric == Metric.INSTRUCTIONS else 300.0)
    arguments = typed.get("arguments", ())
    return Runner(pythons, revisions, arguments, rule, installs, typed.get("keep"), limit_s)


def _rule(metric: Metric, typed: dict[str, Any]) -> Rule:
    """Return the rule of a metric with the fields that options set."""
    fields = {name: typed[name] for name in RULE_OPTIONS if name in typed}
    for name in fields:
        if metric not in RULE_OPTIONS[name]:
            flag, metrics = f"--{name.partition('_')[0]}", " and ".join(RULE_OPTIONS[name])
            raise DtDispatchError(f"{flag} is for --metric {metrics}, and this compares {metric}")
    try:
        return replace(DEFAULT_RULES[metric], **fields)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
