"""Limits on the steps of a watched loop: the first step over one, as data and as a block. Without torch."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.verdicts import CountChange, Verdict
from pytest_dtdispatch.steps.events import Miss, QueriedCache
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.watch.model import Limits, LoopStep, Violation, read_step_limits
from pytest_dtdispatch.watch.text import violation_text

LINE = CodePlace("train.py", 16, "layers.0", Phase.FORWARD)
MISS = Miss(
    "mm.default(f32[6,8]S0, f32[8,8]R)@4",
    "shape of self [6,8], was [4,8]",
    QueriedCache.NATIVE,
    values=("[6,8]", "[4,8]"),
    place=LINE,
)


def step(misses: int = 0, **entries: int) -> LoopStep:
    return LoopStep(40, StepCounts(hits=3, events=(MISS,) * misses, cache_growth=tuple(entries.items())))


def violation(step: LoopStep, **most: int) -> Violation:
    found = Limits(most).violation(step)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("counted", "most", "exceeded"),
    [
        (step(3), {}, {}),
        (step(3), {"misses": 3}, {}),
        (step(3), {"misses": 2}, {"misses=2": 3}),
        (step(3, native=3), {"cache_growth": 0}, {"cache_growth=0": 3}),
        (step(0, native=3, python=5), {"misses": 0, "cache_growth": 4}, {"cache_growth=4": 5}),
        (step(0, python=-5), {"misses": 0, "cache_growth": 0}, {}),
        (step(2, native=2), {"misses": 0, "cache_growth": 1}, {"misses=0": 2, "cache_growth=1": 2}),
    ],
)
def test_only_counts_above_limits_are_violations(
    counted: LoopStep, most: dict[str, int], exceeded: dict[str, int]
) -> None:
    found = Limits(most).violation(counted)
    assert (found is None) == (not exceeded)
    changes = {each.criterion: each.change for each in found.verdicts} if found else {}
    assert {name: change.found for name, change in changes.items() if isinstance(change, CountChange)} == (
        exceeded
    )


def test_violation_has_op_line_and_differing_key() -> None:
    found = violation(step(1, native=1), misses=0)
    [verdict], [miss] = found.verdicts, found.missed
    assert (found.step, verdict.verdict, verdict.lines) == (40, Verdict.REGRESSED, ("train.py:16",))
    assert (miss.op, miss.place, miss.values) == ("mm.default", LINE, ("[6,8]", "[4,8]"))


def test_violation_is_json() -> None:
    data = json.loads(json.dumps(asdict(violation(step(1), misses=0))))
    [verdict], [miss] = data["verdicts"], data["missed"]
    assert (data["step"], verdict["criterion"], verdict["change"]["found"]) == (40, "misses=0", 1)
    assert (miss["signature"], miss["reason"]) == (MISS.signature, MISS.reason)
    assert (miss["place"]["file"], miss["place"]["line"]) == ("train.py", 16)


def test_violation_is_one_block() -> None:
    assert violation_text(violation(step(1, native=1), misses=0), None, False).splitlines() == [
        "dtdispatch: step 40: over its limits",
        "  misses=0, and step 40 has 1, at train.py:16",
        f"      {MISS}",
    ]
    grown = violation(step(0, native=-3, python=2, plans=1), cache_growth=1)
    assert violation_text(grown, 3, True).splitlines() == [
        "dtdispatch: rank 3: step 40: over its limits",
        "  cache_growth=1, and step 40 has 2: 1 more",
        "      python: 2 entries",
        "      plans: 1 entry",
        "  the program ends here, with status 1; ranks that continue fail or wait in their next collective "
        "until their launcher ends them",
    ]


def test_misses_are_listed_if_only_a_cache_is_over() -> None:
    text = violation_text(violation(step(2, native=2), misses=2, cache_growth=1), None, False)
    assert text.splitlines() == [
        "dtdispatch: step 40: over its limits",
        "  cache_growth=1, and step 40 has 2: 1 more",
        "      native: 2 entries",
        "  2 misses",
        f"      {MISS}",
        f"      {MISS}",
    ]


@pytest.mark.parametrize("value", ["collectives=0", "misses", "", "misses=-1", {"calls": 3}, 3])
def test_uncountable_limit_lists_countable_ones(value: object) -> None:
    with pytest.raises(ValueError, match=r"such as misses=0,cache_growth=4: .* of misses, cache_growth"):
        read_step_limits(value)
    assert read_step_limits(("misses=0", "cache_growth=2")) == {"misses": 0, "cache_growth": 2}
