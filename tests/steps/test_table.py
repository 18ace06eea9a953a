"""The table of step counts, and the limits of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import MAX_LISTED
from pytest_dtdispatch.core.verdicts import CountChange, Verdict, complaint
from pytest_dtdispatch.report.document import View
from pytest_dtdispatch.steps.data import steps_data
from pytest_dtdispatch.steps.events import (
    Collective,
    Miss,
    QueriedCache,
    Read,
    Redistribution,
    Wrapping,
    by_cause,
)
from pytest_dtdispatch.steps.model import StepCounts, Steps, state_of
from pytest_dtdispatch.steps.table import LIMITS, document, judge
from tests.rendered import lines_of

TEST = "test_train.py::test_step"
MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "shape of self [9,8], was [8,8]", QueriedCache.NATIVE)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)
WRAPPED = Wrapping("from_local", "f32[8,8]", ("S0",))
STEADY = StepCounts(hits=12, events=(Collective("all_reduce"),))
MISSING = StepCounts(hits=11, events=(MISS, GATHER), cache_growth=(("native", 1), ("python", 0)))
SHARE = Read("item", "f32[]", ("P",), is_partial=True)
# A step with two events of each kind.
RAN = Collective("all_gather", 64, mesh_dim="tp"), Collective("all_reduce", 8, mesh_dim="dp/tp")
OF_BYTES = ("collective_bytes", "collective_bytes[DIM]")
TWO = StepCounts(
    events=(MISS, MISS, GATHER, GATHER, *RAN, WRAPPED, WRAPPED, SHARE, SHARE),
    cache_growth=(("native", 2), ("FakeTensor", 1)),
    spec_growth=2,
    dtensor_growth=2,
)


def text_of(steps: Steps, verbose: bool = False, width: int = 120) -> str:
    return "\n".join(lines_of(document({TEST: (steps,), "a test without steps": ()}, View(verbose)), width))


def steps_of(*counts: StepCounts) -> Steps:
    return Steps("train", (), counts)


def test_advice_is_shown_below_its_step() -> None:
    advice = Advice("mm moved", "place it", "saves at most 2 redistributions", 2)
    lines = text_of(Steps("train", (), (STEADY,), advice=(advice,))).splitlines()
    assert [line.strip() for line in lines[3:5]] == [
        "mm moved: place it",
        "saves at most 2 redistributions, in each step",
    ]


def test_paths_of_causes_are_shortened_like_those_of_budgets() -> None:
    place = CodePlace("/opt/lib/models/layers/attention.py", 7, "", Phase.FORWARD)
    events = tuple(replace(event, place=place) for event in (MISS, GATHER))
    text = text_of(steps_of(StepCounts(events=events)), width=200)
    assert text.count("at .../layers/attention.py:7 (forward)") == len(events)
    assert place.file not in text


def test_steady_step_is_one_line() -> None:
    steady = Steps("train", (STEADY,) * 3, (STEADY,) * 5)
    assert text_of(steady).splitlines() == [
        "  step   calls  hits  misses  redistributes  wraps  collectives  cache+  specs+  DTensors+  steps  "
        "state",
        "test_train.py::test_step (counts of each step)",
        "  train     12    12       0              0      0            1       0       0          0    3+5  "
        "steady",
    ]
    narrow = text_of(steady, width=80).splitlines()[0]
    assert {"misses", "cache+", "specs+", "state"} <= set(narrow.split())
    assert len(narrow) <= 80


def test_misses_and_growing_caches_are_listed_below() -> None:
    text = text_of(Steps("train", (STEADY,), (MISSING, MISSING, STEADY)))
    line, *notes = text.splitlines()[2:]
    assert line.split()[2:4] == ["11-12", "0-1"]
    assert line.endswith("misses, grows")
    assert f"    missed {MISS} (once in each of steps 1-2)" in notes
    assert "    cache entries over 3 steps: native +2" in notes, "caches without growth are not named"
    elsewhere = StepCounts(events=(MISS, replace(MISS, elsewhere=True)))
    note = "    1 of 2 misses were in other threads, whose hits are not counted"
    assert note in text_of(steps_of(elsewhere))


def test_long_list_of_misses_is_cut_unless_verbose() -> None:
    many = tuple(replace(MISS, signature=f"op{i}") for i in range(9))
    steps = steps_of(StepCounts(events=many), StepCounts())
    assert text_of(steps).count("missed op") == 5
    assert "and 4 more misses; -v lists them" in text_of(steps)
    assert text_of(steps, verbose=True).count("missed op") == 9


def test_worst_line_names_test_and_count_per_step() -> None:
    def worst(*steps: StepCounts, name: str = "step") -> str:
        return document({TEST: (Steps(name, (), steps),)}, View()).worst

    assert worst(MISSING, MISSING) == f"worst: {TEST}: 1 miss per step"
    assert worst(STEADY, MISSING, name="train") == f"worst: {TEST}::train: up to 1 miss per step"
    assert worst(StepCounts(events=(GATHER,))) == f"worst: {TEST}: 1 redistribution per step"
    assert worst(StepCounts()) == ""


def test_redistributions_are_listed_by_cause_largest_first() -> None:
    sizes = (*(100,) * 3, 256, *(1, 2, 3, 4, 5))
    step = StepCounts(events=tuple(replace(GATHER, bytes=size) for size in sizes))
    steps = Steps("train", (MISSING, STEADY), (step,))
    gather = "    mm.default: f32[8,8] S0 -> R"
    sent = [f"{gather}, {size} bytes" for size in ("100", "256", "5", "4", "3")]
    sent[0] += " (3x)"
    brief = text_of(steps).splitlines()[3:]
    assert brief == [*sent, "    and 2 more redistributions; -v lists them"]


def test_verbose_lists_collectives_and_the_warm_up() -> None:
    step = StepCounts(events=(GATHER, RAN[0]))
    text = text_of(Steps("train", (MISSING, STEADY), (step, step)), verbose=True)
    for ran in ("mm.default: f32[8,8] S0 -> R, 256 bytes", "ran all_gather: 64 bytes over tp"):
        assert f"    {ran} (once in each of steps 1-2)" in text
    assert "    misses of each step of the warm-up: 1, 0" in text


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        (Steps("a", (STEADY,), (STEADY,)), "steady"),
        (Steps("a", (), (MISSING,)), "counted"),
        (Steps("a", (), (STEADY, MISSING)), "misses, grows"),
        (Steps("a", (), (StepCounts(), StepCounts(spec_growth=1))), "grows"),
        (Steps("a", (), (StepCounts(hits=1), StepCounts(hits=2))), "unsteady"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_names_the_problem_of_a_step(steps: Steps, state: str) -> None:
    assert state_of(steps).text == state
    assert ("    unsteady: 1 calls in step 1 and 2 in step 2" in text_of(steps)) == (state == "unsteady")


@pytest.mark.parametrize(
    ("is_over", "verbose", "is_listed"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_causes_of_an_exceeded_limit_are_listed_by_its_error(
    is_over: bool, verbose: bool, is_listed: bool
) -> None:
    over = frozenset({RowId(TEST, "train")}) if is_over else frozenset()
    found = document({TEST: (steps_of(TWO),)}, View(verbose=verbose, over=over))
    assert any(str(GATHER) in line for line in lines_of(found, 200)) == is_listed


@pytest.mark.parametrize("limit", [name for name in LIMITS if name not in OF_BYTES])
def test_step_over_its_limit_is_reported_with_count(limit: str) -> None:
    limit = limit.replace("DIM", "tp")
    title, excess, *_ = complaint(judge(steps_of(StepCounts(), TWO), {limit: 1})).splitlines()
    assert (title, excess) == ("train: over its limits", f"{limit}=1, and step 2 has 2: 1 more")
    assert not complaint(judge(steps_of(TWO), {limit: 2}))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("collective_bytes", 72),
        ("collective_bytes[tp]", 72),
        ("collective_bytes[dp]", 8),
        ("collective_bytes[ep]", 0),
        ("collectives[dp]", 1),
        ("collectives[ep]", 0),
    ],
)
def test_limit_of_a_dimension_counts_only_its_collectives(name: str, found: int) -> None:
    steps = steps_of(replace(TWO, mesh_dims=("dp", "ep", "tp")))
    assert not complaint(judge(steps, {name: found}))
    [verdict] = judge(steps, {name: found - 1})
    assert (verdict.verdict, verdict.change) == (Verdict.REGRESSED, CountChange(found - 1, found))


@pytest.mark.parametrize(("dims", "valid"), [(("ep",), "dp, ep, tp"), ((), "dp, tp")])
def test_limit_of_an_unknown_dimension_fails(dims: tuple[str, ...], valid: str) -> None:
    [verdict] = judge(steps_of(replace(TWO, mesh_dims=dims)), {"collectives[pp]": 9})
    assert verdict.verdict is Verdict.MISSING
    assert verdict.details == (
        f"collectives[pp]=9 judged nothing: no mesh has this dimension; valid: {valid}",
    )
    [without_meshes] = judge(steps_of(StepCounts()), {"collective_bytes[tp]": 0})
    assert without_meshes.verdict is Verdict.MISSING


def test_collective_shows_dtype_and_mesh_dimension() -> None:
    ran = Collective("all_gather", 4096, dtype="f32", mesh_dim="tp", group="0-3")
    assert str(ran) == "all_gather: 4,096 bytes f32 over tp"
    assert str(replace(ran, mesh_dim="0")) == "all_gather: 4,096 bytes f32 over dim 0"
    assert str(replace(ran, mesh_dim="", group="0,4")) == "all_gather: 4,096 bytes f32 over ranks 0,4"
    assert str(replace(ran, elsewhere="x")) == "all_gather: 4,096 bytes f32 over tp (x)"


@pytest.mark.parametrize(
    "other",
    [Collective("all_gather", 64, dtype="bf16"), Collective("all_gather", 64, mesh_dim="dp")],
    ids=["dtype", "mesh_dim"],
)
def test_collectives_of_different_kinds_are_not_merged(other: Collective) -> None:
    ran = Collective("all_gather", 64)
    [data] = steps_data([steps_of(StepCounts(events=(ran,)), StepCounts(events=(other,)))])
    assert [(each["dtype"], each["mesh_dim"]) for each in data["events"]] == [
        ("", ""),
        (other.dtype, other.mesh_dim),
    ]


def test_ranks_of_groups_are_not_merged_into_ranges() -> None:
    steps = [StepCounts(events=(Collective("all_reduce", 64, group=ranks),)) for ranks in ("0,2", "1,3")]
    assert by_cause([step.events for step in steps]) == [
        "all_reduce: 64 bytes over ranks 0,2 (once in step 1)",
        "all_reduce: 64 bytes over ranks 1,3 (once in step 2)",
    ]


def test_reads_are_shown_if_a_step_has_any() -> None:
    read = Read("item", "f32[]", place=CodePlace("train.py", 3, "", Phase.FORWARD))
    text = text_of(steps_of(StepCounts(), StepCounts(events=(read,))))
    assert "  reads  cache+" in text
    assert "partial_reads" not in text
    assert "    read item of f32[], at train.py:3 (forward) (once in step 2)" in text
    assert "    read item of f32[] P, partial: this rank's share (2x)" in text_of(steps_of(TWO))
    assert "reads" not in text_of(steps_of(STEADY))


@pytest.mark.parametrize("steps", [Steps("train", (TWO,), (StepCounts(),)), Steps("train", (), ())])
def test_warmup_and_unlimited_steps_are_not_judged(steps: Steps) -> None:
    assert not complaint(judge(steps, dict.fromkeys((name for name in LIMITS if "[" not in name), 0)))
    assert not complaint(judge(steps_of(TWO), {}))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_worst_step_over_the_limit_is_reported(misses: list[int], limit: int) -> None:
    steps = steps_of(*(StepCounts(events=(MISS,) * count) for count in misses))
    text, worst = complaint(judge(steps, {"misses": limit})), max(misses)
    assert bool(text) == (worst > limit)
    more = f": {worst - limit} more" if limit else ""
    assert not text or f"and step {misses.index(worst) + 1} has {worst}{more}\n" in text


def test_layers_are_folded_unless_each_is_requested() -> None:
    sources = [CodePlace("/model.py", 16, f"layers.{n}.wq", Phase.FORWARD) for n in range(12)]
    events = (replace(event, place=place) for place in sources for event in (MISS, GATHER))
    steps = steps_of(StepCounts(events=tuple(events)))
    _, excess, *listed = complaint(judge(steps, {"redistributes": 0})).splitlines()
    at = "at /model.py:16 in layers.*.wq (forward)"
    assert excess == "redistributes=0, and step 1 has 12, at /model.py:16"
    assert listed == [f"    {GATHER}, {at} (12x)"]
    assert f"    missed {MISS}, {at} (12x)" in text_of(steps, width=200).splitlines()
    whole = document({TEST: (steps,)}, View(verbose=True))  # the document written to files
    of_each = document({TEST: (steps,)}, View(verbose=True, each_layer=True))
    for count, of in (1, whole), (12, of_each):
        lines = lines_of(of, 200)
        for event in (f"missed {MISS}", GATHER):
            assert sum(line.startswith(f"    {event}") for line in lines) == count


def test_excess_lists_its_components_up_to_limit() -> None:
    assert complaint(judge(steps_of(TWO), {"redistributes": 0, "collectives": 1})) == (
        "train: over its limits\n"
        f"redistributes=0, and step 1 has 2\n    {GATHER} (2x)\n"
        "collectives=1, and step 1 has 2: 1 more\n"
        "    all_gather: 64 bytes over tp\n    all_reduce: 8 bytes over dp/tp"
    )
    different = tuple(replace(MISS, signature=f"mm {i}") for i in range(MAX_LISTED + 3))
    text = complaint(judge(steps_of(StepCounts(events=different)), {"misses": 0}))
    assert text.endswith("\n    and 3 more")
