"""The table of step counts, and the limits of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from tests.rendered import assert_outputs_match, lines_of

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


def steps_of(*counts: StepCounts) -> Steps:
    return Steps("train", (), counts)


def of_shapes(shapes: int, misses: int) -> Steps:
    """Return steps with inputs of this many shapes: one miss for each new shape, then hits."""
    inputs = tuple(f"f32[8,{n}]" for n in range(1, shapes + 1))
    missing = StepCounts(hits=3, events=(MISS,) * misses, cache_growth=(("native", misses),))
    return Steps("decode", (), (missing,) * shapes + (StepCounts(hits=3 + misses),) * shapes, inputs * 2)


LAYERS = [CodePlace("/model.py", 16, f"layers.{n}.wq", Phase.FORWARD) for n in range(12)]
IN_LAYERS = steps_of(
    StepCounts(events=tuple(replace(event, place=place) for place in LAYERS for event in (MISS, GATHER)))
)
AT = CodePlace("/opt/lib/models/layers/attention.py", 7, "", Phase.FORWARD)
ADVICE = Advice("mm moved", "place it", "saves at most 2 redistributions", 2)
SIZES = (*(100,) * 3, 256, *(1, 2, 3, 4, 5))
READ = Read("item", "f32[]", place=CodePlace("train.py", 3, "", Phase.FORWARD))
VERBOSE = View(verbose=True)
OVER = View(over=frozenset({RowId(TEST, "train")}))
# By name: a step and its view.
SHOWN = {
    "steady": (Steps("train", (STEADY,) * 3, (STEADY,) * 5), View()),
    "advice": (Steps("train", (), (STEADY,), advice=(ADVICE,)), View()),
    "shortened paths": (steps_of(StepCounts(events=(replace(MISS, place=AT),))), View()),
    "misses and growing caches": (Steps("train", (STEADY,), (MISSING, MISSING, STEADY)), View()),
    "unsteady": (steps_of(StepCounts(hits=1), StepCounts(hits=2)), View()),
    "misses in other threads": (steps_of(StepCounts(events=(MISS, replace(MISS, elsewhere=True)))), View()),
    "many misses": (
        steps_of(StepCounts(events=tuple(replace(MISS, signature=f"op{'abcdefghi'[n]}") for n in range(9)))),
        View(),
    ),
    "many redistributions": (
        Steps(
            "train",
            (MISSING, STEADY),
            (StepCounts(events=tuple(replace(GATHER, bytes=size) for size in SIZES)),),
        ),
        View(),
    ),
    "collectives and warm-up": (
        Steps("train", (MISSING, STEADY), (StepCounts(events=(GATHER, RAN[0])),) * 2),
        VERBOSE,
    ),
    "a read": (steps_of(StepCounts(), StepCounts(events=(READ,))), View()),
    "two of each event": (steps_of(TWO), View()),
    "two of each event, over a limit": (steps_of(TWO), OVER),
    "two of each event, over a limit, -v": (steps_of(TWO), replace(OVER, verbose=True)),
    "two shapes": (of_shapes(2, 2), View()),
    "many shapes": (of_shapes(16, 3), View()),
    "many shapes, -v": (of_shapes(16, 3), VERBOSE),
    "layers": (IN_LAYERS, VERBOSE),
    "each layer": (IN_LAYERS, View(verbose=True, each_layer=True)),
}


def test_outputs_match_the_saved_text() -> None:
    outputs = {}
    for name, (steps, view) in SHOWN.items():
        found = document({TEST: (steps,), "a test without steps": ()}, view)
        outputs[name] = "\n".join(lines_of(found, 120))
    narrow = lines_of(document({TEST: (SHOWN["steady"][0],)}, View()), 80)
    outputs["steady, 80 columns"] = "\n".join(narrow)
    assert max(map(len, narrow)) <= 80
    assert_outputs_match(Path(__file__).with_name("step_outputs.txt"), outputs)


def test_worst_line_names_test_and_count_per_step() -> None:
    def worst(*steps: StepCounts, name: str = "step") -> str:
        return document({TEST: (Steps(name, (), steps),)}, View()).worst

    assert worst(MISSING, MISSING) == f"worst: {TEST}: 1 miss per step"
    assert worst(STEADY, MISSING, name="train") == f"worst: {TEST}::train: up to 1 miss per step"
    assert worst(StepCounts(events=(GATHER,))) == f"worst: {TEST}: 1 redistribution per step"
    assert worst(StepCounts()) == ""


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


def test_layers_are_folded_in_errors() -> None:
    _, excess, *listed = complaint(judge(IN_LAYERS, {"redistributes": 0})).splitlines()
    assert excess == "redistributes=0, and step 1 has 12, at /model.py:16"
    assert listed == [f"    {GATHER}, at /model.py:16 in layers.*.wq (forward) (12x)"]


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
