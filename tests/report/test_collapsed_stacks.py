"""Profiles as collapsed stacks, and as a reader of these splits them."""

from __future__ import annotations

import re

from pytest_dtdispatch.core.forms import STACKS, form_of
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State
from pytest_dtdispatch.core.profiles import CalledFunction, Profile
from pytest_dtdispatch.report.collapsed_stacks import collapsed_stacks, stack_count
from pytest_dtdispatch.report.reported_run import ReportedRun
from tests.reported_runs import ADD, HOSTILE, profiled_run, row, run_of

# As flamegraph.pl of https://github.com/brendangregg/FlameGraph reads a line.
LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")


def stacks_of(run: ReportedRun) -> dict[tuple[str, ...], int]:
    text = collapsed_stacks(run)
    assert form_of(text) == STACKS
    found = [LINE.match(line) for line in text.splitlines()]
    assert len(found) == stack_count(run)
    return {tuple(line[1].split(";")): int(line[2]) for line in found if line}


def test_a_line_is_a_chain_of_callers_under_test_signature_and_state() -> None:
    calls = (
        CalledFunction(0, "the call itself", 5),
        CalledFunction(1, "first", 0),
        CalledFunction(2, "inner", 7),
        CalledFunction(1, "second", -3),
        CalledFunction(2, "inner", 9),
    )
    samples = Samples(State.MISS, (20,), unit=INSTRUCTIONS, profile=Profile((), 20, (), 20, calls))
    top = ("t.py::test_a", ADD, "a miss")
    assert stacks_of(run_of(row(ADD, samples))) == {
        top: 5,
        (*top, "first", "inner"): 7,
        (*top, "second", "inner"): 9,
    }


def test_every_name_is_one_frame() -> None:
    [*_, deepest] = stacks_of(profiled_run("call", *HOSTILE))
    assert len(deepest) == 3 + len(HOSTILE)
    assert all(frame.isprintable() and frame for frame in deepest)


def test_a_run_without_profiles_has_none() -> None:
    assert (collapsed_stacks(run_of()), stack_count(run_of())) == ("", 0)
