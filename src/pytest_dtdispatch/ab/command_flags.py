"""What is typed for the commands of this folder: flags, what reads each, and what goes together."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_dtdispatch.ab.model import COUNTS, INSTRUCTIONS, METRICS, TIME, Request
from pytest_dtdispatch.ab.process import stopped_by_signals
from pytest_dtdispatch.ab.recording import MOST_SHARE
from pytest_dtdispatch.ab.sides import interpreter
from pytest_dtdispatch.core.parsing import read_choice, read_count, read_file, read_seconds
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.core.verdicts import read_decimal
from pytest_dtdispatch.errors import DtDispatchError, ProcessError

TIME_LIMIT_HELP = "seconds that a process may take (default: 300; of instructions 1800)"
THRESHOLD_HELP = "least shift of a count of instructions that counts (default: 2%%)"
OF_METRIC = {
    "floor_hit": TIME,
    "floor_miss": TIME,
    "passes": TIME,
    "threshold": INSTRUCTIONS,
}
CONTROL_HELP = "shift of plain tensors past which nothing is judged, or off (default: 3%%)"
LEAST_PYTHONS = 2
RULE_NAMES = ("pairs", "confirm", "passes", "control")


def read_percent(text: str) -> float:
    """Read a percentage as a fraction."""
    try:
        fraction = read_decimal(text.removesuffix("%")) / 100 if text.endswith("%") else 0.0
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= MOST_SHARE:
        raise ValueError("a percentage above 0%, such as 7.5%")
    return fraction


def read_floors(text: str) -> dict[str, float]:
    """Read ``hit=7.5%,miss=10%``, as fields of a request."""
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
    """Read a percentage, or ``off``."""
    if text == "off":
        return 0.0
    try:
        return read_percent(text)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None


def read_metric(text: str) -> str:
    """Read what is compared."""
    return read_choice(text, METRICS)


# Each a flag, what reads it, its metavar, its help.
Option = tuple[str, Callable[[str], Any], str, str]
SIDES: tuple[Option, ...] = (
    ("--base", str, "PYTHON", "interpreter of the base"),
    ("--head", str, "PYTHON", "interpreter of the head"),
    ("--base-rev", str, "REV", "commit of the base, in the repository here"),
    ("--head-rev", str, "REV", "commit of the head"),
)
METRIC: tuple[Option, ...] = (
    ("--metric", read_metric, "METRIC", "what is compared: time, counts or instructions (default: time)"),
    ("--threshold", read_percent, "PERCENT", THRESHOLD_HELP),
)
RULE: tuple[Option, ...] = (
    ("--pairs", read_count, "N", "of the screen (default: 5; of counts and instructions 1)"),
    ("--confirm", read_count, "N", "fresh pairs (default: 10; of counts 1, of instructions 2)"),
    ("--passes", read_count, "N", "in a process (default: 5)"),
    ("--floor", read_floors, "FLOORS", "least shifts that count (default: hit=7.5%%,miss=10%%)"),
    ("--control", read_control, "PERCENT", CONTROL_HELP),
)
TIME_LIMIT: Option = ("--time-limit", read_seconds, "S", TIME_LIMIT_HELP)
FILES: tuple[Option, ...] = (
    TIME_LIMIT,
    ("--json", read_file, "FILE", "every sample, written after each process"),
    ("--resume", read_file, "FILE", "go on with the file of an earlier run"),
)


def typed_rule(given: argparse.Namespace, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Give what was typed of the rule and of pytest, by field; what was not typed is left out."""
    names = ("metric", "threshold", *RULE_NAMES)
    typed = {name: value for name in names if (value := getattr(given, name, None)) is not None}
    typed |= given.floor or {}
    return {**typed, "arguments": arguments} if arguments else typed


@contextmanager
def resumable(file: Path | None) -> Iterator[None]:
    """Say, where a run ends early, how to go on with its file."""
    with stopped_by_signals():
        try:
            yield
        except ProcessError as error:
            raise ProcessError(f"{error}{_go_on(file)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted{_go_on(file)}") from None


def _go_on(file: Path | None) -> str:
    return f"; go on with --resume {file}" if file and file.exists() else ""


def declare(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Declare flags."""
    for flag, reader, metavar, meaning in options:
        parser.add_argument(flag, type=told_by(reader), metavar=metavar, help=meaning)


def declare_pythons(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that names several interpreters."""
    what = "an interpreter; once for each that is compared, in their order"
    parser.add_argument("--python", action="append", default=[], metavar="PYTHON", help=what)


def checked_pythons(asked: Request) -> Request:
    """Check that several interpreters are named, each once."""
    if len(asked.pythons) < LEAST_PYTHONS:
        raise DtDispatchError("name two interpreters or more: --python PYTHON --python PYTHON ...")
    seen: dict[str, str] = {}
    for side, given in asked.interpreters.items():
        path = os.path.normpath(interpreter(side, given))
        if path in seen:
            raise DtDispatchError(f"--python {given}: is named twice; leave one out")
        seen[path] = given
    return asked


def told_by(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse say what a reader says."""

    def read(text: str) -> Any:
        try:
            return reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {error}") from None

    return read


def refuse_of_another_metric(metric: str, typed: Mapping[str, Any]) -> None:
    """Refuse what means nothing of this metric."""
    for name in typed:
        if OF_METRIC.get(name, metric) != metric:
            flag = f"--{name.partition('_')[0]}"
            raise DtDispatchError(f"{flag} is for --metric {OF_METRIC[name]}, and this compares {metric}")
    if metric == COUNTS and "control" in typed:
        raise DtDispatchError("--control is for --metric time and instructions: counts are exact")
