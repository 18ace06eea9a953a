"""The mesh and process group fixtures, and the dtdispatch fixture in a run that measures nothing."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import DtDispatchError, GateError
from tests.plugin_runs import benchmarks_of, measure_source, run

pytestmark = pytest.mark.torch


MESHES = """
def test_several(dtdispatch, mesh_factory):
    both = mesh_factory((2, 4), dim_names=("dp", "tp"))
    line = mesh_factory((4,))
    again = mesh_factory()
    assert both.mesh_dim_names == ("dp", "tp")
    assert tuple(both.shape) == (2, 4)
    assert line.mesh_dim_names is None
    assert tuple(line.shape) == tuple(again.shape) == (4,)
    with dtdispatch.capture():
        for mesh in (both, line):
            a = sharded(mesh)
            a + a

@pytest.mark.dtdispatch(mesh=(8,))
def test_meshes_that_grow(mesh_factory):
    assert tuple(mesh_factory((2,)).shape) == (2,)
    assert tuple(mesh_factory((2, 4)).shape) == (2, 4)
    assert dist.get_world_size() == 8

@pytest.mark.dtdispatch(mesh=(2, 3), backend="fake")
def test_group(process_group):
    assert process_group is dist.group.WORLD
    assert process_group.size() == 6
    assert dist.get_backend(process_group) == "fake"

@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"))
def test_named(device_mesh):
    assert device_mesh.mesh_dim_names == ("dp", "tp")

def test_gone_again():
    assert not dist.is_initialized()

def test_shared(process_group, device_mesh):
    assert dist.group.WORLD is process_group
    assert device_mesh.size() == process_group.size() == 4

def test_captures_share_one_book(dtdispatch, a):
    for _ in range(3):
        with dtdispatch.capture() as book:
            a + a
    assert [measured.calls for measured in book.measurements()] == [3] * dtdispatch.enabled

def test_call(dtdispatch, a):
    def chain(x):
        return (x + x).redistribute(placements=[Shard(1)])

    setups = []
    result = dtdispatch.call(chain, a, name="add, then reshard", setup=lambda: setups.append(1))
    assert (result.placements, result.to_local().shape) == ((Shard(1),), (8, 2))
    assert dtdispatch.enabled or setups == [1]
"""


def test_all_fixtures_work_with_and_without_measuring(pytester: pytest.Pytester) -> None:
    flags = ("--dtdispatch-ops=add*", "--benchmark-json=rows.json")
    measure_source(pytester, MESHES, *flags, passed=8)
    found = [(row["fullname"], row["params"]["mesh"]) for row in benchmarks_of(pytester.path / "rows.json")]
    assert {mesh for name, mesh in found if "::test_several::" in name} == {"2x4", "4"}
    call = "test_it.py::test_call::add, then reshard"
    of_call = {each for each in found if "::test_call::" in each[0]}
    assert of_call == {(f"{call}::miss", "4"), (f"{call}::hit", "4")}
    run(pytester).assert_outcomes(passed=8)


# The object of the fixture if nothing is measured: everything runs once


def test_unmeasured_capture_stores_nothing() -> None:
    unmeasured = DtDispatch()
    assert not unmeasured.enabled
    with unmeasured.capture() as book, unmeasured.capture() as other:
        assert unmeasured.call(lambda: 3) == 3
    assert book is not other
    assert book.measurements() == ()
    error = RuntimeError("the test's own")
    with pytest.raises(RuntimeError) as raised, unmeasured.capture():
        raise error
    assert raised.value is error


def test_unmeasured_call_runs_setup_and_function_once() -> None:
    setups: list[str] = []
    unmeasured = DtDispatch()

    def setup() -> tuple[int, int]:
        setups.append("setup")
        return 5, 2

    def divide(a: int, b: int) -> tuple[int, int]:
        setups.append("call")
        return divmod(a, b)

    assert unmeasured.call(divide, 7, 2, name="divide", setup=setup) == (2, 1)
    assert setups == ["setup", "call"]
    assert unmeasured.call(divide, 7, 2, setup=lambda: setups.append("again")) == (3, 1)
    assert setups[2:] == ["again", "call"]
    assert unmeasured.call(lambda *args: args, 1, 2, setup=lambda: ()) == ()
    with pytest.raises(ZeroDivisionError):
        unmeasured.call(divide, 1, 0)


def test_unmeasured_compile_runs_once_uncompiled() -> None:
    calls: list[tuple[int, ...]] = []

    def step(*args: int) -> int:
        calls.append(args)
        return sum(args)

    compiled = DtDispatch().compile(step, 1, 2, others=[(3,), (4, 5)])
    assert calls == [(1, 2), (3,), (4, 5)]
    assert compiled.results == compiled.eager_results == (3, 3, 9)
    assert (compiled.result, compiled.function) == (3, None)
    assert compiled.graphs == compiled.graph_breaks == compiled.recompiles == compiled.propagations == 0


def test_gate_error_is_an_assertion_error() -> None:
    assert issubclass(GateError, AssertionError)
    assert issubclass(GateError, DtDispatchError)
