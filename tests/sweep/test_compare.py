"""The comparison itself: it finds what a careless measurement does to a program, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from tests.sweep import compare
from tests.sweep.cases import OPS, Case, cases, sample_of
from tests.sweep.compare import Compared, EmptyMode
from tests.sweep.programs import Program
from tests.sweep.sweeping import KNOWN, quiet, summary

pytestmark = [pytest.mark.torch, pytest.mark.slow]

KEPT: list[Any] = []


def naive(program: Program, ops: list[str]) -> Any:
    """Repeat the op without putting anything back."""
    with EmptyMode(ops):
        result = program.measured(*program.given.args, **program.given.kwargs)
        with EmptyMode([]):
            program.measured(*program.given.args, **program.given.kwargs)
        return result, program.after(result)


def hoarding(program: Program, ops: list[str]) -> Any:
    """Keep the result."""
    KEPT.append(compare.run_plainly(program, ops))
    return KEPT[-1]


def swallowing(program: Program, ops: list[str]) -> Any:
    """Lose what the program raises."""
    try:
        return compare.run_plainly(program, ops)
    except Exception:
        return None, None


def refuse(*args: Any, **kwargs: Any) -> Any:
    """Raise, as an op without a sharding strategy does."""
    raise NotImplementedError("no strategy")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


def kinds(case: Case, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, way: compare.Way) -> set[str]:
    """Compare one case with a way to measure it; return the kinds of what differs."""
    monkeypatch.setattr(compare, "MEASURED", {"capture": way})
    compared = Compared()
    sample = sample_of(case)
    assert sample is not None
    with quiet():
        compare.compare(case, sample, mesh, compared)
    assert compared.cases.total() == 1
    return {one.kind for one in compared.differences}


@pytest.mark.parametrize("form", ["forward", "in place", "out", "backward", "backward after"])
@pytest.mark.parametrize("placed", ["replicated", "sharded", "partial"])
def test_a_plain_run_differs_in_nothing_from_another(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, form: str, placed: str
) -> None:
    case = Case("add", torch.float32, 0, form, placed)
    assert kinds(case, mesh, monkeypatch, compare.run_plainly) == set()


@pytest.mark.parametrize(
    ("op", "form", "found"),
    [
        ("exp", "in place", {"values", "versions"}),
        ("add", "out", {"versions"}),
        ("add", "backward", {"gradients"}),
        ("uniform", "forward", {"random", "warnings"}),
    ],
)
def test_a_naive_repetition_is_found(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, op: str, form: str, found: set[str]
) -> None:
    case = Case(op, torch.float32, 0, form, "replicated")
    assert found <= kinds(case, mesh, monkeypatch, naive)


def test_tensors_that_stay_alive_are_found(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("add", torch.float32, 0, "forward", "replicated")
    assert kinds(case, mesh, monkeypatch, hoarding) == {"alive after"}


def test_an_exception_that_gets_lost_is_found(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("add", torch.float32, 0, "forward", "sharded")
    assert kinds(case, mesh, monkeypatch, swallowing) == set()
    monkeypatch.setattr(type(OPS["add"]), "__call__", refuse)
    assert "error" in kinds(case, mesh, monkeypatch, swallowing)


def test_cases_are_many_each_has_one_name_and_the_order_is_fixed() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) > 18_000
    assert names == [case.name for case in cases()]


def test_the_docs_give_the_reason_of_each_op_that_may_differ() -> None:
    limitations = (Path(__file__).parents[2] / "docs" / "limitations.md").read_text()
    for op, reason in KNOWN.items():
        assert f"`{op}`" in limitations, (op, reason)


def test_the_figures_of_a_sweep_name_ways_forms_and_placements() -> None:
    compared = Compared()
    compared.cases["capture", "out", "sharded", False] += 2
    compared.cases["call", "out", "sharded", False] += 2
    assert summary(compared)[:3] == ["way: call 2, capture 2", "form: out 2", "placed: sharded 2"]
