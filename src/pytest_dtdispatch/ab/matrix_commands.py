"""``dtdispatch matrix``: what is typed, and what is printed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.ab import runs
from pytest_dtdispatch.ab.command_flags import (
    FILES,
    METRIC,
    RULE,
    checked_pythons,
    declare,
    declare_pythons,
    refuse_of_another_metric,
    resumable,
    typed_rule,
)
from pytest_dtdispatch.ab.errands import TIME_LIMITS_S, usual_request
from pytest_dtdispatch.ab.matrix_report import Found, matrix_document
from pytest_dtdispatch.ab.model import TIME, Run
from pytest_dtdispatch.ab.neighbours import compare, compare_exact
from pytest_dtdispatch.ab.recording import resumed
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.screen import show, shown_width

MATRIX = "matrix"
MATRIX_HELP = "compare several interpreters, each with the one before it, in fresh processes"


def add_matrix_parser(commands: Any) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(MATRIX, help=MATRIX_HELP)
    declare_pythons(parser)
    declare(parser, (*METRIC, *RULE, *FILES))


def obey_matrix(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Compare interpreters, and print the table."""
    typed = typed_rule(given, tuple(arguments))
    if given.python:
        typed["pythons"] = tuple(given.python)
    with resumable(given.json or given.resume):
        return _matrix(given, typed)


def _matrix(given: argparse.Namespace, typed: dict[str, Any]) -> int:
    if given.resume:
        known = resumed(given.resume, MATRIX, typed)
    else:
        asked = replace(usual_request(typed.get("metric", TIME)), command=MATRIX, **typed)
        known = Run(checked_pythons(asked), {})
    metric = known.asked.metric
    refuse_of_another_metric(metric, typed)
    time_limit_s = given.time_limit or TIME_LIMITS_S[metric]
    with runs.recorded(known, time_limit_s, given.json, given.resume) as (place, recorder):
        found: Found = compare(place, recorder) if metric == TIME else compare_exact(place, recorder)
    show(matrix_document(recorder.run, found, shown_width()))
    return matrix_status(found)


def matrix_status(found: Found) -> int:
    """Give the status of the worst verdict; what a version does not have is told, and fails nothing."""
    verdicts = [one for each in found.values() for one in each.verdicts if one.verdict is not Verdict.MISSING]
    return runs.exit_status(any(each.has_compared for each in found.values()), verdicts)
