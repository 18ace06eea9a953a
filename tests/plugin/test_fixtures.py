"""The mesh and process-group fixtures, and the object of the dtdispatch fixture where nothing is measured."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import DtDispatchError, GateError
from tests.plugin_runs import benchmarks_of, measure_source, run

pytestmark = pytest.mark.torch

NAMED = '@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"))'
SHAPE = "def test_it(device_mesh): print('mesh', tuple(device_mesh.shape), device_mesh.mesh_dim_names)"


@pytest.mark.parametrize(
    ("ini", "marker", "flags", "shape"),
    [
        ("", "", [], "(4,) None"),
        ("dtdispatch_mesh = 3x2", "", [], "(3, 2) None"),
        ("dtdispatch_mesh = 3x2", NAMED, [], "(2, 2) ('dp', 'tp')"),
        # Names for two dimensions cannot name one: they go with the shape that the flag replaced.
        ("dtdispatch_mesh = 3x2", NAMED, ["--dtdispatch-mesh=5"], "(5,) None"),
        ("dtdispatch_mesh = 3x2", NAMED, ["--dtdispatch-mesh=5x1"], "(5, 1) ('dp', 'tp')"),
    ],
)
def test_a_mesh_is_as_flag_marker_and_ini_file_say(
    pytester: pytest.Pytester, ini: str, marker: str, flags: list[str], shape: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\ndtdispatch_device = cpu\n")
    pytester.makepyfile(f"import pytest\n{marker}\n{SHAPE}")
    result = run(pytester, "-s", *flags)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*mesh {shape.replace('[', '[[]')}*"])


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

def test_gone_again():
    assert not dist.is_initialized()

def test_shared(process_group, device_mesh):
    assert dist.group.WORLD is process_group
    assert device_mesh.size() == process_group.size() == 4

@pytest.mark.parametrize("number", [1, 2])
def test_equal_meshes_of_two_tests_do_not_share_caches(device_mesh, number):
    a = sharded(device_mesh)
    assert (a + a).device_mesh is device_mesh

def test_captures_share_one_book(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    for _ in range(3):
        with dtdispatch.capture() as book:
            a + a
    assert [measured.calls for measured in book.measurements()] == [3] * dtdispatch.enabled

def test_call(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def chain(x):
        return (x + x).redistribute(placements=[Shard(1)])

    made = []
    result = dtdispatch.call(chain, a, name="add, then reshard", setup=lambda: made.append(1))
    assert (result.placements, result.to_local().shape) == ((Shard(1),), (8, 2))
    assert dtdispatch.enabled or made == [1]
"""


def test_meshes_groups_captures_and_calls_of_a_run_with_and_without_the_flag(
    pytester: pytest.Pytester,
) -> None:
    flags = ("--dtdispatch-ops=add*", "--benchmark-json=rows.json")
    result = measure_source(pytester, MESHES, *flags, passed=9)
    found = [(row["fullname"], row["params"]["mesh"]) for row in benchmarks_of(pytester.path / "rows.json")]
    assert {mesh for name, mesh in found if "::test_several::" in name} == {"2x4", "4"}
    call = "test_it.py::test_call::add, then reshard"
    assert {each for each in found if "::test_call::" in each[0]} == {
        (f"{call}::{state}", "4") for state in ("miss", "hit")
    }
    result.stdout.fnmatch_lines(["test_it.py::test_call (end to end from Python, autograd included)"])
    run(pytester).assert_outcomes(passed=9)


# The object behind the fixture where nothing is measured: everything runs once


def test_a_capture_runs_its_block_and_keeps_nothing() -> None:
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


@pytest.mark.parametrize(("prepared", "result"), [((5, 2), (2, 1)), (None, (3, 1))])
def test_a_call_is_made_once_and_setup_may_replace_its_arguments(
    prepared: tuple[int, int] | None, result: tuple[int, int]
) -> None:
    made: list[str] = []
    unmeasured = DtDispatch()

    def setup() -> tuple[int, int] | None:
        made.append("setup")
        return prepared

    def divide(a: int, b: int) -> tuple[int, int]:
        made.append("call")
        return divmod(a, b)

    assert unmeasured.call(divide, 7, 2, name="divide", setup=setup) == result
    assert made == ["setup", "call"]
    assert unmeasured.call(divide, 7, 2, name="divide") == (3, 1)
    assert unmeasured.call(lambda *args: args, 1, 2, setup=lambda: ()) == ()
    with pytest.raises(ZeroDivisionError):
        unmeasured.call(divide, 1, 0)


def test_a_scaling_makes_and_calls_each_size_once_from_the_largest_down() -> None:
    seen: list[int] = []
    unmeasured = DtDispatch()
    scaling = unmeasured.scaling(lambda size: lambda: seen.append(size), iter((4, 16, 8)), max_exponent=1e-6)
    assert scaling.sizes == ()
    unmeasured.scaling(lambda size: lambda: seen.append(size))
    assert seen == [16, 8, 4, 64, 32, 16, 8]
    for make in (lambda size: 1 // 0, lambda size: lambda: 1 // 0):
        with pytest.raises(ZeroDivisionError):
            unmeasured.scaling(make, (2, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *(
            ({"sizes": sizes}, f"sizes={sizes} is not two or more whole numbers of at least 1 that differ")
            for sizes in ((8,), (8, 8), (8, 0), 8)
        ),
        ({"max_exponent": 0}, "max_exponent=0 is not a number above 0"),
        ({"max_exponent": "1.3"}, "max_exponent='1.3' is not a number above 0"),
        (
            {"make": lambda size: [size]},
            "make(64) returned [64]: it must return a callable without arguments",
        ),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(arguments: dict[str, object], says: str) -> None:
    made: list[int] = []
    with pytest.raises(DtDispatchError) as raised:
        DtDispatch().scaling(**{"make": lambda size: lambda: made.append(size), **arguments})  # type: ignore[arg-type]
    assert str(raised.value) == says
    assert made == []


def test_a_compile_runs_everything_once_and_compiles_nothing() -> None:
    calls: list[tuple[int, ...]] = []

    def step(*args: int) -> int:
        calls.append(args)
        return sum(args)

    compiled = DtDispatch().compile(step, 1, 2, others=[(3,), (4, 5)])
    assert calls == [(1, 2), (3,), (4, 5)]
    assert compiled.results == compiled.eager_results == (3, 3, 9)
    assert (compiled.result, compiled.function) == (3, None)
    assert compiled.graphs == compiled.graph_breaks == compiled.recompiles == compiled.propagations == 0


def test_a_gate_fails_a_test_as_an_assertion_does() -> None:
    assert issubclass(GateError, AssertionError)
    assert issubclass(GateError, DtDispatchError)
