"""Tests of the comparison: it detects side effects of careless measuring, without false alarms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from tests.sweep import compare
from tests.sweep.cases import Case, cases, ops, sample_of
from tests.sweep.compare import Compared
from tests.sweep.programs import Program
from tests.sweep.sweeping import quiet

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("young_heap")]

RESULTS: list[Any] = []


def naive(program: Program) -> Any:
    """Repeat the op without restoring state."""
    result = program.measured(*program.inputs.args, **program.inputs.kwargs)
    program.measured(*program.inputs.args, **program.inputs.kwargs)
    return result, program.after(result)


def hoarding(program: Program) -> Any:
    """Leak the result."""
    RESULTS[:] = [compare.finish(program)]
    return RESULTS[0]


def swallowing(program: Program) -> Any:
    """Swallow exceptions of the program."""
    try:
        return compare.finish(program)
    except Exception:
        return None, None


def refuse(*args: Any, **kwargs: Any) -> Any:
    """Raise like an op without a sharding strategy."""
    raise NotImplementedError("no strategy")


def kinds(case: Case, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, way: compare.Way) -> set[str]:
    """Compare a case measured in a given way; return the kinds of differences."""
    monkeypatch.setattr(compare, "MEASURED", {"capture": way})
    compared = Compared()
    sample = sample_of(case)
    assert sample is not None
    with quiet():
        compare.compare(case, sample, mesh, compared)
    assert compared.cases == 1
    return {one.kind for one in compared.differences}


@pytest.mark.parametrize("form", ["forward", "in place", "out", "backward", "backward after"])
@pytest.mark.parametrize("placed", ["replicated", "sharded", "partial"])
def test_plain_runs_do_not_differ(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, form: str, placed: str
) -> None:
    case = Case("add", torch.float32, 0, form, placed)
    assert kinds(case, mesh, monkeypatch, compare.finish) == set()


@pytest.mark.parametrize(
    ("op", "form", "way", "found"),
    [
        ("exp", "in place", naive, {"values", "versions"}),
        ("add", "out", naive, {"versions"}),
        ("add", "backward", naive, {"gradients"}),
        ("uniform", "forward", naive, {"random", "warnings"}),
        ("add", "forward", hoarding, {"alive after"}),
    ],
)
def test_careless_measuring_is_detected(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, op: str, form: str, way: compare.Way, found: set[str]
) -> None:
    assert found <= kinds(Case(op, torch.float32, 0, form, "replicated"), mesh, monkeypatch, way)
    RESULTS.clear()


def test_swallowed_exception_is_detected(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("add", torch.float32, 0, "forward", "sharded")
    assert kinds(case, mesh, monkeypatch, swallowing) == set()
    monkeypatch.setattr(type(ops()["add"]), "__call__", refuse)
    assert "error" in kinds(case, mesh, monkeypatch, swallowing)


def test_cases_have_unique_names_in_fixed_order() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) > 18_000
    assert names == [case.name for case in cases()]
