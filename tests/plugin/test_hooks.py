"""The ten-line test, the flags, the marker and the ini file: what a user gets for what a user types."""

from __future__ import annotations

import pytest

from tests.plugin_runs import ADD, IMPORTS, TEN_LINES, benchmarks_of, measure, rows, run, text_of

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


COUNTED = (
    IMPORTS
    + """
calls = []

class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls.append(func)
        return func(*args, **(kwargs or {}))

def test_add(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with Counting(), dtdispatch.capture() as book:
        a + a
    print("enabled", dtdispatch.enabled, "calls", len(calls), "measured", len(book.measurements()))
"""
)
OWN_GROUP = (
    IMPORTS
    + """
from torch.distributed.tensor import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

def test_without_fixtures():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    a = sharded(init_device_mesh("cpu", (2,)))
    a * a
    dist.destroy_process_group()
"""
)


def states_of(found: list[dict[str, object]]) -> list[str]:
    return sorted(str(row["fullname"]).rpartition("::")[2] for row in found)


def test_the_ten_line_test_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_ten=TEN_LINES)
    result, found = rows(pytester)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1)
    assert {row["fullname"] for row in found} == {
        f"test_ten.py::test_add::{ADD}::{state}" for state in ("miss", "hit", "local")
    }
    medians = {row["params"]["state"]: row["stats"]["median"] for row in found}
    assert medians["miss"] > 10 * medians["hit"] > 0
    result.stdout.fnmatch_lines(
        [
            "*= dtdispatch =*",
            "  signature * miss * +-%  hit * +-% * overhead *",
            "test_ten.py::test_add (dispatch from below autograd)",
            "  add.Tensor(*@4 *",
            "  * are proved by the cache counters",
        ]
    )


def test_a_mode_of_the_program_sees_one_call_measured_or_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(COUNTED)
    result = run(pytester, "-s")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*enabled False calls 1 measured 0*"])
    assert "= dtdispatch =" not in text_of(result)
    assert "dtdispatch: " not in text_of(result)
    measure(pytester, "-s").stdout.fnmatch_lines(["*enabled True calls 1 measured 1*"])


def test_all_measures_a_test_without_the_fixture_and_once_one_with_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own=OWN_GROUP, test_ten=TEN_LINES)
    path = pytester.path / "rows.json"
    result = run(pytester, "--dtdispatch-all", "--dtdispatch-rounds=1", f"--benchmark-json={path}")
    assert result.ret == pytest.ExitCode.OK
    found = benchmarks_of(path)
    own = [row["fullname"] for row in found if row["fullname"].startswith("test_own")]
    assert set(own) == {
        f"test_own.py::test_without_fixtures::{row}"
        for row in (
            *(f"mul.Tensor(f32[8,8]S0, f32[8,8]S0)@2::{state}" for state in ("miss", "hit", "local")),
            "distribute_tensor(f32[8,8] -> S0)@2::call",
        )
    }
    # Of the test with the fixture its capture alone: what it does around it is not measured.
    assert {row["params"]["op"] for row in found if row["fullname"].startswith("test_ten")} == {"add.Tensor"}


def test_all_says_that_no_test_ran_a_dtensor_op(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = measure(pytester, "--dtdispatch-all")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["nothing was measured: no test that passed ran an op on DTensors"])


def test_a_run_without_the_fixture_says_so_and_names_the_other_flag(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = measure(pytester)
    result.stdout.fnmatch_lines(
        ["nothing was measured: no test that passed made a call on DTensors*--dtdispatch-all*"]
    )


@pytest.mark.parametrize(
    ("globs", "ops"),
    [
        (["add*"], {"add.Tensor"}),
        (["add*", "mul.Tensor"], {"add.Tensor", "mul.Tensor"}),
        (["a*"], {"add.Tensor", "abs.default"}),
        (["ADD*"], set()),
    ],
)
def test_globs_choose_the_ops(pytester: pytest.Pytester, globs: list[str], ops: set[str]) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_ops(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        (a + a) * a.abs()
"""
    )
    result, found = rows(pytester, *(f"--dtdispatch-ops={glob}" for glob in globs))
    assert result.ret == pytest.ExitCode.OK
    assert {row["params"]["op"] for row in found} == ops


def test_cold_rows_are_added_when_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES)
    result, found = rows(pytester, "-odtdispatch_cold=true")
    assert states_of(found) == ["cold", "hit", "local", "miss"]
    result.stdout.fnmatch_lines(["dtdispatch: * cold)", "  signature *cold ?s*"])


MARKED = (
    IMPORTS
    + """
@pytest.mark.dtdispatch(rounds=4, repeat=2)
def test_marked(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
"""
)


@pytest.mark.parametrize(
    ("marked", "ini", "flags", "rounds", "hits"),
    [
        (False, "", [], 20, 200),
        (False, "dtdispatch_rounds = 3\ndtdispatch_repeat = 1", [], 3, 3),
        (True, "dtdispatch_rounds = 3\ndtdispatch_repeat = 1", [], 4, 8),
        (True, "dtdispatch_rounds = 3", ["--dtdispatch-rounds=5", "--dtdispatch-repeat=1"], 5, 5),
    ],
    ids=["default", "ini", "marker", "flag"],
)
def test_flag_beats_marker_beats_ini_beats_default(
    pytester: pytest.Pytester, marked: bool, ini: str, flags: list[str], rounds: int, hits: int
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\ndtdispatch_max_time = 60\n")
    pytester.makepyfile(
        MARKED if marked else MARKED.replace("@pytest.mark.dtdispatch(rounds=4, repeat=2)", "")
    )
    result = run(pytester, "--dtdispatch", "-v", *flags, "--benchmark-json=rows.json", "--benchmark-quiet")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"  add.Tensor(* {rounds}+{hits} *"])


def test_an_ini_file_alone_turns_measuring_on_and_lists_globs(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch = true\ndtdispatch_rounds = 1\ndtdispatch_ops =\n  mm*\n  add*\n")
    pytester.makepyfile(TEN_LINES)
    result = run(pytester)
    result.stdout.fnmatch_lines(["dtdispatch: *ops=mm?,add?)", "  add.Tensor(*"])


def test_a_marker_chooses_ops_and_cold_for_its_test_alone(pytester: pytest.Pytester) -> None:
    body = """
    a = sharded(device_mesh)
    with dtdispatch.capture():
        (a + a) * a
"""
    pytester.makepyfile(
        IMPORTS
        + '@pytest.mark.dtdispatch(ops=("mul*",), cold=True)\ndef test_marked(dtdispatch, device_mesh):'
        + body
        + "def test_plain(dtdispatch, device_mesh):"
        + body
    )
    _, found = rows(pytester)
    seen = {
        test: {
            (row["params"]["op"], row["params"]["state"]) for row in found if f"::{test}::" in row["fullname"]
        }
        for test in ("test_marked", "test_plain")
    }
    assert seen["test_marked"] == {("mul.Tensor", state) for state in ("miss", "hit", "local", "cold")}
    assert {op for op, _ in seen["test_plain"]} == {"add.Tensor", "mul.Tensor"}
    assert "cold" not in {state for _, state in seen["test_plain"]}


def test_a_test_that_fails_keeps_its_rows(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES + "            raise ValueError('of the test')\n")
    result, found = rows(pytester)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert states_of(found) == ["hit", "local", "miss"]
    result.stdout.fnmatch_lines(["E * ValueError: of the test", "  add.Tensor(*"])


def test_a_lambda_is_named_after_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_lambda=IMPORTS
        + """
def test_call(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.call(lambda: a + a)
    with pytest.raises(Exception, match="name .test_call. is taken by another call of this test"):
        dtdispatch.call(lambda: a * a)

def test_scaling(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.scaling(lambda n: lambda: a + n, sizes=(1, 2))
"""
    )
    result, found = rows(pytester)
    result.assert_outcomes(passed=2)
    names = {row["fullname"].rpartition("::")[0] for row in found}
    assert names == {
        "test_lambda.py::test_call::test_call",
        *(f"test_lambda.py::test_scaling::test_scaling[{size}]" for size in (1, 2)),
    }
