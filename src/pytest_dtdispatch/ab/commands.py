"""``dtdispatch ab``: what is typed, and what is printed."""

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
    declare,
    refuse_of_another_metric,
    resumable,
    typed_rule,
)
from pytest_dtdispatch.ab.errands import TIME_LIMITS_S, usual_request
from pytest_dtdispatch.ab.model import BASE, HEAD, TIME, Request, Run
from pytest_dtdispatch.ab.neighbours import Neighbours, NumberNeighbours, compare, compare_exact
from pytest_dtdispatch.ab.number_report import number_document
from pytest_dtdispatch.ab.recording import Recorder, resumed
from pytest_dtdispatch.ab.report import result_document
from pytest_dtdispatch.ab.worker import Workplace
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.screen import show

AB = "ab"
AB_HELP = "compare two interpreters, or two commits, in fresh processes"


def add_ab_parser(commands: Any) -> None:
    """Declare the subcommand."""
    declare(commands.add_parser(AB, help=AB_HELP), (*SIDES, *METRIC, *RULE, *FILES))


def obey_ab(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Compare two sides, and print what was found."""
    typed = _typed(given, tuple(arguments))
    with resumable(given.json or given.resume):
        return _ab(given, typed)


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
    return {**typed, **typed_rule(given, arguments)}
