"""Rules of advice on groups of FSDP2, applied to events. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.advice.fsdp import SMALL_GROUP_BYTES
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.core.events import Cell, CodePlace, FsdpGroup, Part, Phase
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.steps.events import AnyEvent, Collective
from pytest_dtdispatch.steps.model import StepCounts

FORWARD = CodePlace("train.py", 7, "model", Phase.FORWARD)
BACKWARD = replace(FORWARD, phase=Phase.BACKWARD)
# A root and three blocks; none of them is small with the default number of bytes.
ROOT = FsdpGroup(1, "", is_root=True)
BLOCKS = [FsdpGroup(number, f"layers.{number}", parent=1, is_root=False) for number in (2, 3, 4)]
US = 1_000.0


def ran(kind: str, group: int, nbytes: int = 2**20, **changes: Any) -> Collective:
    return replace(Collective(kind, nbytes, fsdp_group=group, contents=group, place=FORWARD), **changes)


def gathers(*groups: int, **changes: Any) -> list[Collective]:
    return [ran("all_gather", group, **changes) for group in groups]


def backward(*groups: int, after: int = 0, kinds: Sequence[str] = ("reduce_scatter",), **changes: Any) -> Any:
    """Return the gathers and the reductions of a backward pass; later passes accumulate."""
    accumulated = {"accumulates": after > 0, **changes}
    of_pass = [
        [ran("all_gather", group), *(ran(kind, group, **accumulated) for kind in kinds)] for group in groups
    ]
    return [replace(one, place=BACKWARD, after=after) for one in chain(*of_pass)]


def one_pass(*groups: int, after: int = 0, **changes: Any) -> list[AnyEvent]:
    return [*gathers(*groups, after=after), *backward(*groups, after=after, **changes)]


def found(
    *events: AnyEvent,
    groups: Iterable[FsdpGroup] = (ROOT, *BLOCKS),
    is_recorded: bool = True,
    cells: Sequence[Cell] = (),
) -> tuple[Advice, ...]:
    step = StepCounts(events=events)
    recorded = replace(step, is_recorded=is_recorded, groups=tuple(groups))
    return advise([step] * 3, recorded, Budget("step", sum(cell.ns for cell in cells), tuple(cells)))


def rules(*events: AnyEvent, **more: Any) -> list[tuple[str, int]]:
    return [(one.rule, one.count) for one in found(*events, **more)]


PASSES = [*one_pass(2, 3), *one_pass(2, 3, after=1), *one_pass(2, 3, after=2)]
# Gathers of a frozen group in later passes are another saving.
REDUCTIONS = [one for one in PASSES if isinstance(one, Collective) and one.kind != "all_gather"]
FROZEN = [*one_pass(2, kinds=()), *one_pass(2, after=1, kinds=())]
WRITTEN = [replace(one, contents=9, after=2, place=BACKWARD) for one in gathers(2)]  # a later backward
CHUNKS = [*gathers(1, 2, 2, 2), *backward(2, 2, 1, kinds=())]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(REDUCTIONS, [("micro-batches", 4)], id="accumulated"),
        pytest.param(
            [replace(one, accumulates=False) for one in REDUCTIONS], [], id="used or zeroed in between"
        ),
        pytest.param(
            [replace(one, accumulates=one.after == 2) for one in REDUCTIONS],
            [("micro-batches", 2)],
            id="two of three passes",
        ),
        pytest.param([replace(one, after=0) for one in REDUCTIONS], [], id="one pass"),
        pytest.param(
            [one for one in REDUCTIONS if one.fsdp_group == 2 + (one.after > 0)][:2], [], id="two models"
        ),
        pytest.param(
            [
                one
                for after in (0, 1)
                for one in backward(2, after=after, kinds=("reduce_scatter", "all_reduce"))
            ],
            [("micro-batches", 2), ("kept gathered", 1)],
            id="hybrid sharding",
        ),
        pytest.param(gathers(2, 2), [("kept gathered", 1)], id="called twice without backward"),
        pytest.param([*gathers(2), *gathers(2, contents=9)], [], id="written in between"),
        pytest.param([*gathers(2), *backward(2, kinds=())], [], id="once in forward and in backward"),
        pytest.param([*gathers(2), *backward(2, after=1)], [], id="backward after one of another model"),
        pytest.param([*gathers(2, 3, 2, 3), *backward(3, 2)], [], id="two calls of the model"),
        pytest.param(
            FROZEN,
            [("kept gathered", 3)],
            id="frozen base",
        ),
        pytest.param(
            [*FROZEN, *gathers(2, after=2, contents=9), *WRITTEN],
            [("kept gathered", 4)],
            id="frozen base, and a pass after it is written",
        ),
        pytest.param(CHUNKS, [("repeated gathers", 5)], id="chunks"),
        pytest.param([*gathers(1, 2, 3, 2), *backward(2, 3, 2, kinds=())], [], id="not in a row"),
    ],
)
def test_groups_that_run_again(events: list[AnyEvent], expected: list[tuple[str, int]]) -> None:
    assert rules(*events) == expected
    assert rules(*events, is_recorded=False) == []


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 5),
        ({"parent": 0, "module": "model"}, 4),  # one gather of the new group is left
        ({"parent": 0}, 0),
        ({"layout": 7}, 0),
        ({"is_frozen": True}, 0),
        ({"is_root": True, "parent": 0}, 0),
    ],
    ids=["alike", "no group around it yet", "called by itself", "another layout", "frozen", "the root"],
)
def test_group_can_be_left_to_the_module_around_it(changes: dict[str, Any], count: int) -> None:
    own = replace(BLOCKS[0], **changes)
    every = dict(rules(*CHUNKS, groups=(ROOT, own)))
    assert every.get("repeated gathers", 0) == count


@pytest.mark.parametrize(("sums_in", "has_dtype"), [("", False), ("bf16", True)])
def test_narrow_sums_need_a_dtype_of_reductions(sums_in: str, has_dtype: bool) -> None:
    groups = [replace(one, sums_in=sums_in) for one in BLOCKS]
    [advice] = found(*REDUCTIONS, groups=groups)
    assert ("reduce_dtype=torch.float32" in advice.change) is has_dtype
    assert advice.bytes == 4 * 2**20
    assert f"keeps {2 * 2**20:,} bytes" in advice.change


@pytest.mark.parametrize(
    ("events", "stays_gathered", "words"),
    [
        (gathers(2, 2), False, "call set_reshard_after_forward(False) and unshard() on each group of"),
        ([*gathers(2), *gathers(2, after=1)], False, "call set_reshard_after_forward(False) and unshard()"),
        ([*gathers(2), *gathers(2, after=1)], True, "call set_reshard_after_backward(False)"),
        (
            [*one_pass(2, kinds=()), *one_pass(2, after=1, kinds=())],
            False,
            "pass reshard_after_forward=False, and",
        ),
    ],
    ids=["one pass", "forward in several passes", "gathered until backward", "in forward and backward"],
)
def test_change_keeps_a_group_gathered_as_long_as_needed(
    events: list[AnyEvent], stays_gathered: bool, words: str
) -> None:
    [advice] = found(*events, groups=[replace(one, stays_gathered=stays_gathered) for one in BLOCKS])
    assert (advice.rule, words in advice.change) == ("kept gathered", True)
    assert f"keeps {2**20:,} bytes" in advice.change


def test_gathers_of_written_parameters_end_before_each_write() -> None:
    first, second = ([*gathers(2, after=2 * n), *gathers(2, after=2 * n + 1)] for n in range(2))
    groups = [replace(one, stays_gathered=True) for one in BLOCKS]
    [advice] = found(*first, *(replace(one, contents=7) for one in second), groups=groups)
    assert "before all passes but the last before each write to them" in advice.change


def small(nbytes: int = 64) -> list[Any]:
    return [replace(one, bytes=nbytes) for one in one_pass(2, 3, 4) if isinstance(one, Collective)]


@pytest.mark.parametrize(
    ("events", "changes", "expected"),
    [
        (small(), {}, [("small groups", 6)]),
        (small(SMALL_GROUP_BYTES + 1), {}, []),
        (small(), {"layout": 7}, []),
        (small(), {"parent": 3}, []),
        (small(), {"is_frozen": True}, []),
        (small(), {"stays_gathered": True}, []),
        ([one for one in small() if isinstance(one, Collective) and one.fsdp_group < 4], {}, []),
    ],
    ids=["alike", "large", "another layout", "another parent", "frozen", "stays gathered", "two"],
)
def test_small_groups_of_one_kind_are_merged(
    events: list[AnyEvent], changes: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    assert rules(*events, groups=[*BLOCKS[:2], replace(BLOCKS[2], **changes)]) == expected
    assert rules(*events, is_recorded=False) == []


def test_small_groups_promise_copies_and_hooks() -> None:
    parts = (Part.FSDP_COLLECTIVES, Part.FSDP_COPIES, Part.FSDP_PYTHON, Part.LOCAL)
    cells = [Cell(part, "", FORWARD, 100 * US, 1) for part in parts]
    other = Collective("all_reduce", 4096, place=FORWARD)
    [advice] = found(*small(), other, cells=cells)
    # 9 of 10 collectives belong to FSDP. One of three groups remains.
    assert advice.ns == pytest.approx((100 * 9 / 10 + 200) * US * 2 / 3)


def test_rules_of_groups_save_different_collectives() -> None:
    two: list[Any] = [*small(), *(replace(one, after=1, accumulates=True) for one in small())]
    every = found(*two)
    assert [one.rule for one in every] == ["kept gathered", "micro-batches", "small groups"]
    assert sum(one.count for one in every) < len(two)


def test_change_names_only_layers_of_the_finding() -> None:
    """One name for all layers, ``layers.*``, would include those that the change is not for."""
    every = [one for one in REDUCTIONS if one.fsdp_group in (2, 3)]
    [partly] = found(*every, *gathers(4))
    [all_layers] = found(*every, *gathers(1))
    assert partly.change.startswith("call set_requires_gradient_sync(False) on layers.2, layers.3 before")
    assert all_layers.change.startswith("call set_requires_gradient_sync(False) on layers.* before")
