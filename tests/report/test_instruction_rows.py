"""The table of counted instructions, and profiles."""

from __future__ import annotations

from typing import Any

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Samples,
    State,
)
from pytest_dtdispatch.core.profiles import Profile, Share
from pytest_dtdispatch.report.document import Line, Tone, View
from pytest_dtdispatch.report.rows import document
from tests.rendered import line_of, lines_of, table_of, titles_of

VIEW = View(counted="instructions")


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


def counted(*samples: Samples, **more: Any) -> Measurement:
    return Measurement("add@4", "add@4", "add", "4", Contains.DISPATCH, 3, Figures(5, samples, **more))


MISSES = counts(State.MISS, 6_720_000, 6_650_000, 6_650_100)
HITS = counts(State.HIT, 66_000, 66_050)
LOCALS = counts(State.LOCAL, 11_000)


def only_line(measurement: Measurement, verbose: bool = False) -> Line:
    return line_of(document({"test_a": [measurement]}, View(verbose, "instructions")))


def test_a_row_has_the_least_count_its_spread_and_how_many_there_are() -> None:
    table = table_of(document({"test_a": [counted(MISSES, HITS, LOCALS)]}, VIEW))
    assert titles_of(table) == ("miss", "miss+", "hit", "hit+", "local", "miss/hit", "samples")
    [[line]] = [group.lines for group in table.groups]
    assert line.cells == ("6,650,000", "70,000", "66,000", "50", "11,000", "100.8", "3+2")
    assert line.tone is Tone.GOOD


def test_no_line_says_that_a_count_is_a_time() -> None:
    text = " ".join(lines_of(document({"test_a": [counted(MISSES, HITS)]}, VIEW), 120))
    assert not {"s", "ms", "us", "ns"} & set(text.split())


LONG = "torch::" + "x" * 200 + "::dispatch"
PROFILE = Profile((Share("rule (a.py:3)", 750), Share(LONG, 250)), 1_000)


def profiled(width: int = 100) -> list[str]:
    """Lines below the table of one signature: its head, its test, its line, what is proved."""
    misses = Samples(State.MISS, (1_000,), unit=INSTRUCTIONS, profile=PROFILE)
    return lines_of(document({"t.py::test_add": [counted(HITS, misses)]}, VIEW), width)[4:]


def test_each_function_has_its_count_and_its_part_of_the_call() -> None:
    [title, whole, first, second] = profiled()
    assert title == "profile of a miss: t.py::test_add::add@4"
    assert whole.split()[:3] == ["1,000", "100.0", "%"]
    assert first.split() == ["750", "75.0", "%", "rule", "(a.py:3)"]
    assert second.split()[:3] == ["250", "25.0", "%"]


def test_lines_of_a_profile_fit_and_keep_both_ends_of_a_name() -> None:
    assert all(len(line) <= 100 for line in profiled())
    assert "torch::x" in profiled()[3]
    assert profiled()[3].endswith("::dispatch")


def test_what_was_not_profiled_has_no_profile() -> None:
    assert len(lines_of(document({"t.py::test_add": [counted(HITS)]}, VIEW))) == 4
