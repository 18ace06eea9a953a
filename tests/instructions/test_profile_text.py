"""A profile, as lines of a terminal."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.core.profile import Profile, Share
from pytest_dtdispatch.core.units import INSTRUCTIONS
from pytest_dtdispatch.instructions.profile_text import profile_lines

LONG = "torch::" + "x" * 200 + "::dispatch"
PROFILE = Profile((Share("eval", 750), Share(LONG, 250)), 1_000, (Share("rule (a.py:3)", 9),), 10)


def lines(width: int = 100) -> list[str]:
    misses = Samples(State.MISS, (1_000,), unit=INSTRUCTIONS, profile=PROFILE)
    figures = Figures(5, (misses,))
    row = Measurement("add@4", "add@4", "add", "4", Contains.DISPATCH, 1, figures)
    every = profile_lines({"t.py::test_add": [row]}, width)
    return ["".join(piece.text for piece in line) for line in every]


def test_each_function_has_its_count_and_its_part_of_the_call() -> None:
    [title, machine, first, second, python, rule] = lines()
    assert title == "profile of a miss: t.py::test_add::add@4"
    assert machine.split()[:3] == ["1,000", "100.0", "%"]
    assert first.split() == ["750", "75.0", "%", "eval"]
    assert second.split()[:3] == ["250", "25.0", "%"]
    assert python.split()[:3] == ["10", "100.0", "%"]
    assert rule.split() == ["9", "90.0", "%", "rule", "(a.py:3)"]


def test_lines_fit_and_keep_both_ends_of_a_name() -> None:
    assert all(len(line) <= 100 for line in lines())
    assert "torch::x" in lines()[3]
    assert lines()[3].endswith("::dispatch")


def test_what_was_not_profiled_has_no_lines() -> None:
    row = Measurement("add@4", "add@4", "add", "4", Contains.DISPATCH, 1, Figures(5))
    assert list(profile_lines({"t.py::test_add": [row]}, 100)) == []
