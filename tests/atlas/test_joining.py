"""Rows of several versions joined, and what is called a change from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.atlas.atlas_file import AtlasEntry, AtlasRecord
from pytest_dtdispatch.atlas.changes import (
    HIT_FACTOR,
    MISS_FACTOR,
    ChangeKind,
    VersionPair,
    changed_factor,
    compare_atlases,
)
from pytest_dtdispatch.atlas.joining import in_order, joined, merged
from pytest_dtdispatch.atlas.model import Outcome
from pytest_dtdispatch.core.measurement import State
from tests.atlas.test_page import ENVIRONMENT

MISS, HIT, LOCAL = (1e6, 1.1e6), (7e3, 7.1e3), (2e3, 2.1e3)


def entry(
    op: str = "mm.default",
    arguments: str = "f32[8,8]S0",
    mesh: str = "4",
    miss: tuple[float, ...] = MISS,
    hit: tuple[float, ...] = HIT,
    **others: Any,
) -> AtlasEntry:
    visits = {State.MISS: miss, State.HIT: hit, State.LOCAL: LOCAL}
    row = AtlasEntry(
        op, f"{op}({arguments})@{mesh}", Outcome.MEASURED, mesh, visits_ns=visits, propagations=1
    )
    return replace(row, **others)


def refused(op: str = "mm.default", outcome: Outcome = Outcome.UNSUPPORTED) -> AtlasEntry:
    return entry(op, outcome=outcome, message="RuntimeError: no", visits_ns={}, propagations=None)


def record(version: str, *rows: AtlasEntry, **others: Any) -> AtlasRecord:
    environment = replace(ENVIRONMENT, torch_version=version)
    known = AtlasRecord(environment, "A CPU", 2, "3.11.7", "2026-11-21", "dtdispatch atlas", "", rows)
    return replace(known, **others)


def between(before: Iterable[AtlasEntry], after: Iterable[AtlasEntry], **others: Any) -> VersionPair:
    compared = compare_atlases((record("2.9.1", *before), record("2.10.0", *after, **others)))
    return compared.neighbours[0]


def changed(before: Iterable[AtlasEntry], after: Iterable[AtlasEntry], **others: Any) -> list[ChangeKind]:
    return [change.kind for change in between(before, after, **others).changes]


def both_meshes(**others: Any) -> list[AtlasEntry]:
    """Give an op on two meshes: a change of times is called where both have it."""
    return [entry(mesh=mesh, **others) for mesh in ("4", "2x4")]


def test_versions_are_put_into_their_order_by_number() -> None:
    given = [record(version, entry()) for version in ("2.10.0+cu128", "2.5.1", "2.9.1+cpu")]
    assert [version.heading for version in in_order(given)] == ["2.5.1", "2.9.1", "2.10.0"]


@pytest.mark.parametrize(
    ("versions", "others", "headings"),
    [
        (("2.9.1+cpu", "2.9.1+cu128"), {}, ["2.9.1+cpu", "2.9.1+cu128"]),
        (("2.9.1", "2.9.1"), {"date": "2026-11-22"}, ["2.9.1, 2026-11-21", "2.9.1, 2026-11-22"]),
        (("2.9.1", "2.9.1"), {"python": "3.12.1"}, ["2.9.1, Python 3.11.7", "2.9.1, Python 3.12.1"]),
        (("2.9.1", "2.9.1"), {}, ["2.9.1 (1)", "2.9.1 (2)"]),
    ],
)
def test_each_version_has_a_heading_of_its_own(
    versions: tuple[str, str], others: dict[str, str], headings: list[str]
) -> None:
    first, second = versions
    given = (record(first, entry()), record(second, entry(), **others))
    assert [version.heading for version in in_order(given)] == headings


def test_a_row_has_an_entry_for_each_version_that_has_it() -> None:
    old, new = entry(), entry("add.Tensor")
    rows = joined(in_order((record("2.9.1", old), record("2.10.0", new, old))))
    assert [(row.op, row.entries) for row in rows] == [
        ("add.Tensor", (None, new)),
        ("mm.default", (old, old)),
    ]


def test_a_row_whose_other_arguments_changed_is_joined_and_says_so() -> None:
    old, new = entry(arguments="f32[8,8]S0, dim=1"), entry(arguments="f32[8,8]S0, dim=1, keepdim=True")
    both = between([old], [new])
    assert [row.entries for row in both.rows] == [(old, new)]
    assert both.rows[0].signature == new.signature
    assert [change.kind for change in both.changes] == [ChangeKind.ARGUMENTS]


def test_a_changed_row_is_joined_over_versions_between() -> None:
    old, new = entry(arguments="f32[8,8]S0, dim=1"), entry(arguments="f32[8,8]S0")
    versions = in_order((record("2.9.1", old), record("2.10.0", entry("add.Tensor")), record("2.11.0", new)))
    assert [row.entries for row in joined(versions)][1] == (old, None, new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([entry(arguments="f32[8,8]S0")], [entry(arguments="f32[8,8]S1")]),
        ([entry(mesh="4")], [entry(mesh="2x4")]),
        (
            [entry(arguments="f32[8]S0, dim=0"), entry(arguments="f32[8]S0, dim=1")],
            [entry(arguments="f32[8]S0, dim=2")],
        ),
        (
            [entry(arguments="f32[8]S0, size=[8,8]")],
            [entry(arguments="f32[8]S0, dim=1"), entry(arguments="f32[8]S0, dim=2")],
        ),
    ],
)
def test_rows_of_other_tensors_and_what_several_could_be_stay_apart(
    before: list[AtlasEntry], after: list[AtlasEntry]
) -> None:
    both = between(before, after)
    assert len(both.rows) == len(before) + len(after)
    assert both.changes == ()


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (entry(), entry(), []),
        (refused(), entry(), [ChangeKind.SUPPORTED]),
        (entry(), refused(), [ChangeKind.UNSUPPORTED]),
        (entry(), refused(outcome=Outcome.NOT_REPEATED), [ChangeKind.OUTCOME]),
        (refused(outcome=Outcome.NO_KERNEL), refused(), [ChangeKind.OUTCOME]),
        (entry(), refused(outcome=Outcome.UNDEFINED), []),
        (refused(), refused(outcome=Outcome.UNDEFINED), []),
        (entry(), entry(moves=("self S0 -> R",)), [ChangeKind.MOVES]),
        (entry(moves=("self S0 -> R",)), entry(), [ChangeKind.STAYS]),
        (entry(moves=("self S0 -> R",)), entry(moves=("self S0 -> S1",)), [ChangeKind.MOVES_ELSE]),
        (entry(moves=("self S0 -> R",)), entry(propagations=None), []),
        (entry(propagations=3), entry(), [ChangeKind.FEWER]),
        (entry(), entry(propagations=3), [ChangeKind.MORE]),
        (entry(why_no_hit="never asks"), entry(), [ChangeKind.HITS]),
        (entry(), entry(why_no_hit="propagation runs on every call"), [ChangeKind.NO_HIT]),
        (entry("add.Tensor"), entry(), [ChangeKind.NO_RULE, ChangeKind.RULE]),
    ],
)
def test_what_is_counted_is_compared_exactly(
    before: AtlasEntry, after: AtlasEntry, kinds: list[ChangeKind]
) -> None:
    assert changed([before, entry("neg.default")], [after, entry("neg.default")]) == kinds


def test_a_time_past_the_factor_on_two_signatures_is_a_change() -> None:
    slow = both_meshes(hit=(10e3, 10.1e3), miss=(2e6, 2.1e6))
    assert changed(both_meshes(), slow) == [ChangeKind.SLOWER_HIT, ChangeKind.SLOWER_MISS] * 2
    assert changed(slow, both_meshes()) == [ChangeKind.FASTER_HIT, ChangeKind.FASTER_MISS] * 2


def test_a_time_of_one_signature_alone_is_noise_unless_its_counts_changed_too() -> None:
    slow = entry(hit=(10e3, 10.1e3))
    assert changed(both_meshes(), [slow, entry(mesh="2x4")]) == []
    moved = replace(slow, moves=("self S0 -> R",))
    assert changed(both_meshes(), [moved, entry(mesh="2x4")]) == [ChangeKind.MOVES, ChangeKind.SLOWER_HIT]


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"cpu": "Another CPU"}, "they were taken with another CPU"),
        ({"python": "3.12.1"}, "they were taken with another Python"),
        (
            {"environment": replace(ENVIRONMENT, torch_version="2.10.0", threads=4)},
            "they were taken with another number of threads",
        ),
    ],
)
def test_times_of_unlike_runs_are_not_compared(others: dict[str, Any], why: str) -> None:
    slow = both_meshes(hit=(10e3, 10.1e3))
    both = between(both_meshes(), slow, **others)
    assert (both.why_no_times, both.changes) == (why, ())


def test_another_patch_of_python_is_no_other_python() -> None:
    assert not between([entry()], [entry()], python="3.11.9").why_no_times


def test_times_are_not_compared_where_plain_tensors_shifted() -> None:
    shifted = [replace(row, visits_ns={**row.visits_ns, State.LOCAL: (3e3, 3e3)}) for row in both_meshes()]
    both = between(both_meshes(), shifted)
    assert both.control == 1.5
    assert both.why_no_times.startswith("plain tensors differ by a factor of 1.50")


def test_a_row_whose_plain_tensors_were_as_much_slower_is_unchanged() -> None:
    slowed = [
        replace(
            row, visits_ns={state: tuple(1.7 * ns for ns in row.visits_ns[state]) for state in row.visits_ns}
        )
        for row in both_meshes()
    ]
    quiet = [
        entry("add.Tensor"),
        entry("mul.Tensor"),
        entry("sub.Tensor"),
        entry("neg.default"),
        entry("t.default"),
    ]
    both = between([*both_meshes(), *quiet], [*slowed, *quiet])
    assert both.control == 1.0
    assert both.changes == ()


def test_a_quiet_visit_of_another_atlas_takes_a_change_back() -> None:
    slow = [replace(row, visits_ns={**row.visits_ns, State.HIT: (9.5e3, 9.6e3)}) for row in both_meshes()]
    before, slowed, quiet = (
        record("2.9.1", *both_meshes()),
        record("2.10.0", *slow),
        record("2.10.0", *both_meshes()),
    )
    assert {change.kind for change in compare_atlases((before, slowed)).neighbours[0].changes} == {
        ChangeKind.SLOWER_HIT
    }
    [old, new] = merged((before, slowed, quiet))
    assert new.rows[0].steady_ns == (*HIT, 9.5e3, 9.6e3)
    assert not compare_atlases((old, new)).neighbours[0].changes


def test_merged_atlases_have_the_rows_of_each_and_figures_where_one_has_some() -> None:
    first = record("2.9.1", refused(), entry("t.default"), date="2026-11-21", load="load 1.0")
    second = record("2.9.1", entry(), entry("neg.default"), date="2026-11-22", load="load 2.0")
    [both] = merged((first, second))
    assert [(row.op, row.outcome) for row in both.rows] == [
        (op, Outcome.MEASURED) for op in ("mm.default", "t.default", "neg.default")
    ]
    assert (both.date, both.load) == ("2026-11-21, 2026-11-22", "load 1.0, then load 2.0")
    assert merged((first, record("2.9.1", entry(), python="3.12.1"))) == (
        first,
        record("2.9.1", entry(), python="3.12.1"),
    )


def test_times_are_not_compared_without_plain_tensors() -> None:
    alone = [replace(entry(), visits_ns={State.HIT: HIT})]
    assert between(alone, alone).why_no_times == "no op was measured on plain tensors on both"


@pytest.mark.parametrize(
    ("before", "after", "controls", "factor"),
    [
        ((100, 110), (150, 160), (), 1.5),
        ((150, 160), (100, 110), (), 100 / 150),
        ((100, 110), (120, 121), (), 0.0),  # too little
        ((100, 110, 155), (150, 160), (), 0.0),  # one visit saw it before
        ((100,), (150, 160), (), 0.0),  # no second visit
        ((100, 130), (150, 160), (), 0.0),  # of which none found the same
        ((), (150, 160), (), 0.0),
        ((100, 110), (135, 140), (1.1, 1.0), 0.0),  # plain tensors take their part of it
        ((135, 140), (100, 110), (0.9, 1.0), 0.0),
        ((100, 110), (150, 160), (0.9, 1.0), 1.5),
        ((100, 110), (150, 160), (1.0, 1.4), 0.0),  # and so do those of the op itself
        ((150, 160), (100, 110), (1.0, 0.7), 0.0),
    ],
)
def test_a_factor_of_noise_is_none(
    before: tuple[float, ...], after: tuple[float, ...], controls: tuple[float, ...], factor: float
) -> None:
    assert changed_factor(before, after, HIT_FACTOR, controls) == pytest.approx(factor)


@given(
    some.lists(some.floats(1.0, MISS_FACTOR), min_size=2),
    some.lists(some.floats(1.0, MISS_FACTOR), min_size=2),
)
def test_two_runs_within_the_factor_never_differ(before: list[float], after: list[float]) -> None:
    assert changed_factor(sorted(before), sorted(after), MISS_FACTOR) == 0
