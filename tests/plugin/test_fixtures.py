"""The mesh and process-group fixtures: what a test gets, and what is left of it afterwards."""

from __future__ import annotations

import pytest

from tests.plugin_runs import IMPORTS, measure, rows, run

pytestmark = pytest.mark.torch

SHAPE = """
def test_shape(device_mesh):
    print("mesh", tuple(device_mesh.shape), device_mesh.mesh_dim_names, device_mesh.device_type,
          dist.get_backend(), dist.get_world_size())
"""


def shape_of(pytester: pytest.Pytester, *args: str, marker: str = "") -> str:
    pytester.makepyfile(f"{IMPORTS}\n{marker}{SHAPE}")
    result = run(pytester, "-s", *args)
    assert result.ret == pytest.ExitCode.OK
    [line] = [line for line in result.outlines if "mesh (" in line]
    return line.partition("mesh ")[2].rstrip(".")


def test_a_mesh_has_four_fake_ranks_by_default(pytester: pytest.Pytester) -> None:
    assert shape_of(pytester, "--dtdispatch-device=cpu") == "(4,) None cpu fake 4"


def test_a_marker_beats_the_ini_file_and_a_flag_beats_both(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_mesh = 3x2\ndtdispatch_device = cpu\n")
    assert shape_of(pytester) == "(3, 2) None cpu fake 6"
    marker = '@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"))'
    assert shape_of(pytester, marker=marker) == "(2, 2) ('dp', 'tp') cpu fake 4"
    # Names for two dimensions cannot name one: they go with the shape that the flag replaced.
    assert shape_of(pytester, "--dtdispatch-mesh=5", marker=marker) == "(5,) None cpu fake 5"
    assert shape_of(pytester, "--dtdispatch-mesh=5x1", marker=marker) == "(5, 1) ('dp', 'tp') cpu fake 5"


def test_one_rank_can_be_had_on_gloo(pytester: pytest.Pytester) -> None:
    args = ("--dtdispatch-mesh=1", "--dtdispatch-backend=gloo", "--dtdispatch-device=cpu")
    assert shape_of(pytester, *args) == "(1,) None cpu gloo 1"


def test_a_factory_makes_several_meshes_in_one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_meshes(dtdispatch, mesh_factory):
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
"""
    )
    result, found = rows(pytester, "--dtdispatch-ops=add*")
    assert result.ret == pytest.ExitCode.OK
    assert {row["params"]["mesh"] for row in found} == {"2x4", "4"}
    assert run(pytester).ret == pytest.ExitCode.OK


def test_a_marker_makes_room_for_meshes_that_grow(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
@pytest.mark.dtdispatch(mesh=(8,))
def test_meshes(mesh_factory):
    assert tuple(mesh_factory((2,)).shape) == (2,)
    assert tuple(mesh_factory((2, 4)).shape) == (2, 4)
    assert dist.get_world_size() == 8
"""
    )
    assert run(pytester).ret == pytest.ExitCode.OK


def test_a_process_group_alone_has_a_rank_for_each_place(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
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
"""
    )
    run(pytester).assert_outcomes(passed=3)


@pytest.mark.parametrize("flags", [(), ("--dtdispatch",)], ids=["unmeasured", "measured"])
def test_equal_meshes_of_two_tests_do_not_share_caches(
    pytester: pytest.Pytester, flags: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
@pytest.mark.parametrize("number", [1, 2])
def test_mesh(device_mesh, number):
    a = sharded(device_mesh)
    assert (a + a).device_mesh is device_mesh
"""
    )
    run(pytester, *flags).assert_outcomes(passed=2)


def test_an_unmeasured_test_gets_results_and_an_empty_book(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_unmeasured(dtdispatch, device_mesh):
    assert not dtdispatch.enabled
    from torch.distributed.tensor import DTensor
    a = DTensor.from_local(torch.rand(8, 8), device_mesh, [Shard(0)])
    with dtdispatch.capture() as book:
        b = a + a
    assert torch.equal(b.to_local(), 2 * a.to_local())
    assert book.measurements() == ()
    made = []
    result = dtdispatch.call(torch.add, a, a, setup=lambda: made.append(1) or (a, b))
    assert torch.equal(result.to_local(), (a + b).to_local())
    assert made == [1]
    with dtdispatch.capture(), dtdispatch.capture():
        assert dtdispatch.call(lambda: 3) == 3
"""
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_call_is_a_row_under_its_name_and_gives_its_first_result(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_calls=IMPORTS
        + """
def test_chain(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def chain(x):
        return (x + x).redistribute(placements=[Shard(1)])

    result = dtdispatch.call(chain, a, name="add, then reshard")
    assert (result.placements, result.to_local().shape) == ((Shard(1),), (8, 2))
"""
    )
    result, found = rows(pytester)
    assert result.ret == pytest.ExitCode.OK
    assert {row["fullname"] for row in found} == {
        f"test_calls.py::test_chain::add, then reshard::{state}" for state in ("miss", "hit")
    }
    assert {row["params"]["mesh"] for row in found} == {"4"}
    result.stdout.fnmatch_lines(["test_calls.py::test_chain (end to end from Python, autograd included)"])


def test_several_captures_of_a_test_share_one_book(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_twice(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    for _ in range(3):
        with dtdispatch.capture() as book:
            a + a
    [measured] = book.measurements()
    assert measured.calls == 3
"""
    )
    assert measure(pytester).ret == pytest.ExitCode.OK
