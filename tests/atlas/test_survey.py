"""Rows of the atlas: every op has one, whatever torch says to it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from pytest_dtdispatch.atlas.inputs import GRID
from pytest_dtdispatch.atlas.model import MAX_VISITS, VISITS, AtlasRow, Outcome
from pytest_dtdispatch.atlas.survey import (
    MAX_MESSAGE,
    PLAN,
    VISITING_S,
    MeshOf,
    Surveyed,
    counted,
    shortened,
    survey,
    surveyed_often,
)
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from tests.plugin_runs import one_thread
from tests.probes import needs_rule

if TYPE_CHECKING:
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

# torch warns of beta, deprecated and random ops.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

Survey = Callable[..., list[AtlasRow]]
OPS = ops_with_a_rule()
QUICK = Plan(rounds=1, repeat=1, max_time_s=0.01)
A_FEW = list(OPS)[::80]


@pytest.fixture
def mesh_of(group_owner: ProcessGroupOwner) -> MeshOf:
    """Give meshes of one fake group."""
    group_owner.group(Place(GRID, "cpu", "fake"))

    @functools.cache
    def made(shape: tuple[int, ...]) -> Any:
        return group_owner.mesh(Place(shape, "cpu", "fake"))

    return made


@pytest.fixture
def rows_of(mesh_of: MeshOf) -> Iterator[Survey]:
    """Survey ops by name on few samples, without a word from torch's loggers."""

    def rows(*names: str, plan: Plan = QUICK, ops: dict[str, Any] = OPS) -> list[AtlasRow]:
        chosen = {name: ops[name] for name in names}
        return list(counted(list(survey(chosen, mesh_of, plan)), mesh_of))

    logging.disable()
    with one_thread():
        yield rows
    logging.disable(logging.NOTSET)


class Failing:
    """Stands for an op call that raises, as on an index that a collective left undefined."""

    def __init__(self, *_: object) -> None:
        pass

    def on(self, mesh_of: MeshOf) -> Failing:
        return self

    def run(self) -> None:
        raise IndexError("index 7 is out of range")

    __enter__ = run

    def __exit__(self, *_: object) -> None:
        pass


def by_signature(rows: list[AtlasRow]) -> dict[str, AtlasRow]:
    return {row.signature: row for row in rows}


def test_a_measured_op_has_every_figure(rows_of: Survey) -> None:
    rows = by_signature(rows_of("add.Tensor", plan=PLAN))
    row = rows["add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"]
    assert row.outcome is Outcome.MEASURED
    assert row.measurement is not None
    assert {samples.state for samples in row.measurement.recorded()} == {
        State.MISS,
        State.HIT,
        State.COLD,
        State.LOCAL,
    }
    assert row.measurement.proof == "proved"
    assert row.counts is not None
    assert (row.counts.propagations, row.moves, row.counts.collectives) == (1, (), ())
    assert not row.why_no_hit


def test_common_ops_are_measured_on_both_meshes_in_many_layouts(rows_of: Survey) -> None:
    rows = rows_of("add.Tensor")
    assert {row.mesh for row in rows} == {"4", "2x4"}
    assert len({row.signature for row in rows}) == len(rows) > 8


def test_a_redistribution_is_counted_with_the_argument_that_is_moved(rows_of: Survey) -> None:
    row = by_signature(rows_of("mm.default"))["mm.default(f32[8,16]S0, f32[16,32]S0)@4"]
    assert row.moves == ("mat2 f32[16,32] S0 -> R",)
    assert row.counts is not None
    assert row.counts.collectives == (("all_gather", 1),)


def test_a_move_names_every_argument_that_it_may_be(rows_of: Survey) -> None:
    moves = {move for row in rows_of("_foreach_add.List") for move in row.moves}
    assert "self or other f32[8,8] S1 -> S0" in moves


def test_propagations_inside_a_propagation_are_counted(rows_of: Survey) -> None:
    ops = {"glu.default": torch.ops.aten.glu.default}
    row = rows_of("glu.default", ops=ops)[0]
    if row.outcome is Outcome.UNSUPPORTED:  # by a torch that makes no rule out of what an op is made of
        assert row.message.startswith("NotImplementedError")
    else:
        assert row.counts is not None
        assert row.counts.propagations > 1


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        pytest.param(name, outcome, message, marks=needs_rule(name), id=name)
        for name, outcome, message in (
            ("index_put_.default", Outcome.UNSUPPORTED, "RuntimeError: "),
            ("selu.default", Outcome.SPLIT, "into elu.default"),
            ("positive.default", Outcome.SPLIT, "no op reaches DTensor"),
            ("squeeze_.default", Outcome.NOT_REPEATED, "runs once: it changes a tensor's shape in place"),
            ("_scaled_dot_product_flash_attention.default", Outcome.NO_KERNEL, "NotImplementedError: "),
        )
    ],
)
def test_an_op_without_figures_is_a_row_that_says_why(
    rows_of: Survey, name: str, outcome: Outcome, message: str
) -> None:
    row = next(row for row in rows_of(name) if row.outcome is not Outcome.MEASURED)
    assert row.outcome is outcome
    assert row.message.startswith(message)
    assert row.measurement is None


def test_an_op_that_no_arguments_were_made_for_is_a_row(rows_of: Survey) -> None:
    class Demanding:
        """An op that nothing suits."""

        __name__ = "demanding.default"
        _schema = torch.ops.aten.add.Tensor._schema

        def __call__(self, *args: object) -> None:
            raise ValueError("not these\nnor any other")

    [row] = rows_of("demanding.default", ops={"demanding.default": Demanding()})
    assert (row.outcome, row.message) == (Outcome.NO_ARGUMENTS, "ValueError: not these")
    assert row.signature == "demanding.default"


def test_an_op_that_never_asks_the_propagator_says_so(rows_of: Survey) -> None:
    for row in rows_of("is_same_size.default"):
        assert row.why_no_hit.startswith("never asks the sharding propagator")


def test_a_long_message_is_cut() -> None:
    assert shortened("a" * MAX_MESSAGE) == "a" * MAX_MESSAGE
    assert len(shortened("a" * 1_000)) == MAX_MESSAGE


def test_a_signature_is_visited_until_two_visits_agree(mesh_of: MeshOf) -> None:
    with one_thread():
        surveyed = surveyed_often({"atan2.default": OPS["atan2.default"]}, mesh_of)
    assert surveyed
    for one in surveyed:
        assert VISITS <= len(one.row.visits) <= MAX_VISITS
        assert not one.row.unconfirmed or len(one.row.visits) == MAX_VISITS


def test_visits_for_disagreement_end_with_the_time(mesh_of: MeshOf) -> None:
    seconds = iter((0.0, *(VISITING_S + 1.0 for _ in range(100))))
    with one_thread():
        surveyed = surveyed_often({"atan2.default": OPS["atan2.default"]}, mesh_of, seconds.__next__)
    assert {len(one.row.visits) for one in surveyed} == {VISITS}


@pytest.mark.parametrize("name", A_FEW)
def test_an_op_has_a_row(rows_of: Survey, name: str) -> None:
    rows = rows_of(name)
    assert {row.op for row in rows} == {name}
    assert dist.is_initialized()


@pytest.mark.slow
@pytest.mark.sweep
def test_every_op_has_a_row_and_few_lack_arguments(rows_of: Survey) -> None:
    rows = rows_of(*OPS)
    assert {row.op for row in rows} == set(OPS)
    measured = [row for row in rows if row.outcome is Outcome.MEASURED]
    lacking = [row.signature for row in rows if row.outcome is Outcome.NO_ARGUMENTS]
    assert len(measured) >= 250
    assert len(lacking) <= len(OPS) // 50, lacking


@pytest.mark.parametrize("is_written", [True, False])
def test_an_op_that_raises_while_it_is_measured_has_a_row(
    is_written: bool, rows_of: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_dtdispatch.atlas.survey.SignatureCapture", Failing)
    monkeypatch.setattr("pytest_dtdispatch.atlas.survey.collectives_write", lambda: is_written)
    outcome = Outcome.NOT_REPEATED if is_written else Outcome.UNDEFINED
    rows = rows_of("atan2.default")
    assert {(row.outcome, row.message) for row in rows} == {(outcome, "IndexError: index 7 is out of range")}


def test_an_op_that_raises_while_it_is_counted_keeps_its_row(mesh_of: MeshOf) -> None:
    row = AtlasRow("mm.default", "mm.default(f32[8,8]S0)@4", "4", Outcome.MEASURED)
    case: Any = Failing()
    assert list(counted([Surveyed(row, case)], mesh_of)) == [row]


def test_what_raises_after_a_collective_that_writes_nothing_is_not_called_unsupported(
    rows_of: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcomes(is_written: bool) -> list[Outcome]:
        monkeypatch.setattr("pytest_dtdispatch.atlas.survey.collectives_write", lambda: is_written)
        return [row.outcome for row in rows_of("convolution_backward.default")]

    written, unwritten = outcomes(is_written=True), outcomes(is_written=False)
    differing = [both for both in zip(written, unwritten, strict=True) if both[0] is not both[1]]
    if Outcome.UNSUPPORTED not in written:
        pytest.skip("this torch supports every layout of convolution_backward")
    assert set(differing) == {(Outcome.UNSUPPORTED, Outcome.UNDEFINED)}
