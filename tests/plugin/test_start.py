"""The cost of the plugin in a run that measures nothing: torch is not imported."""

from __future__ import annotations

import fnmatch

import pytest

# A conftest that prints the modules imported by the end of the run.
PRINT_IMPORTS = """
import sys

def pytest_unconfigure():
    ours = sorted(name[18:] for name in sys.modules if name.startswith("pytest_dtdispatch."))
    folders = ("torchapi", "rounds", "replay", "lines", "meshes", "ranks")
    # These do not import torch: samplers, wrapping packages, merged rows and tables of ranks.
    light = {"rounds", "rounds.sampler", "replay", "replay.guard", "lines", "lines.traced_line"}
    light |= {"lines.wrappers", "ranks", "ranks.merge", "ranks.table"}
    heavy = [name for name in ours if name.partition(".")[0] in folders and name not in light]
    print("imported:", *(name for name in ("torch", "numpy") if name in sys.modules), *heavy, "end")
    print("ours:", *ours, "end")
"""
INI = """
[pytest]
dtdispatch_rounds = 5
dtdispatch_mesh = 2x4
dtdispatch_backend = fake
dtdispatch_ops = add*
"""
TESTS = """
import pytest

@pytest.mark.dtdispatch(mesh=(2, 2), rounds=3)
def test_marked():
    pass

def test_fixture_of_another(tmp_path):
    assert tmp_path.exists()
"""
WITH_FIXTURES = "def test_torch(dtdispatch, device_mesh, mesh_factory, process_group): pass\n"
# Without plugins that import more than a run needs: pytest-randomly imports NumPy.
OTHERS = ("hypothesispytest", "xdist", "codspeed", "randomly", "asyncio", "rerunfailures", "timeout")
FAST = ("-pno:cacheprovider", *(f"-pno:{name}" for name in OTHERS))


def run_alone(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a subprocess, where nothing is imported yet."""
    pytester.makeconftest(PRINT_IMPORTS)
    return pytester.runpytest_subprocess(*FAST, *args)


@pytest.mark.parametrize("ini", ["", INI], ids=["", "ini"])
def test_unmeasured_run_imports_only_hooks_and_settings(pytester: pytest.Pytester, ini: str) -> None:
    pytester.makeini(ini or "[pytest]\n")
    pytester.makepyfile(TESTS if ini else "def test_nothing(tmp_path): pass")
    result = run_alone(pytester)
    assert result.ret == pytest.ExitCode.OK
    ours = "*" if ini else "plugin plugin.hooks plugin.settings end"
    result.stdout.fnmatch_lines(["imported: end", f"ours: {ours}"])


@pytest.mark.parametrize("args", [(), ("--dtdispatch-all", "--benchmark-only")])
def test_torch_is_imported_late_and_measuring_has_header(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    """Collection does not import torch, and only a measuring run has a header."""
    pytester.makeini(INI)
    pytester.makepyfile(TESTS, test_fixtures=WITH_FIXTURES)
    result = run_alone(pytester, "--co", *args)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*3 tests collected*", "imported: end"])
    headers = [line for line in result.outlines if line.startswith("dtdispatch:")]
    if args:
        assert fnmatch.fnmatchcase(headers.pop(), "dtdispatch: load *")
    where = "dtdispatch: *, metric=time mesh=2x4 device=auto backend=fake"
    counts = "dtdispatch: rounds=5 repeat=10 max_time=1s ops=add[*]"
    message = (where, counts) if args else ()
    assert len(headers) == len(message)
    assert all(map(fnmatch.fnmatchcase, headers, message))


@pytest.mark.parametrize(
    ("args", "status", "lines"),
    [
        (("--dtdispatch", "--dtdispatch-mesh=2x"), pytest.ExitCode.USAGE_ERROR, []),
        (("-k", "unmeasured"), pytest.ExitCode.OK, ["*1 passed*"]),
        (("--markers",), pytest.ExitCode.OK, ["@pytest.mark.dtdispatch(rounds=..., *, mesh=..., *): *"]),
        (
            ("--fixtures",),
            pytest.ExitCode.OK,
            [f"{name} -- *" for name in ("device_mesh", "dtdispatch", "mesh_factory", "process_group")],
        ),
    ],
    ids=["mistake", "fixture", "markers", "fixtures"],
)
def test_unmeasured_commands_do_not_import_torch(
    pytester: pytest.Pytester, args: tuple[str, ...], status: int, lines: list[str]
) -> None:
    pytester.makepyfile("def test_unmeasured(dtdispatch): assert not dtdispatch.enabled")
    result = run_alone(pytester, *args)
    assert result.ret == status
    for line in (*lines, "imported: end"):
        result.stdout.fnmatch_lines([line])


@pytest.mark.torch
def test_measuring_run_imports_torch(pytester: pytest.Pytester) -> None:
    # Proves that the check of the other tests can fail.
    pytester.makepyfile(WITH_FIXTURES)
    result = run_alone(pytester, "--dtdispatch")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["imported: torch * torchapi *"])


def test_plugin_has_its_package_name(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TESTS)
    for name in ("pytest_dtdispatch.plugin", "pytest_dtdispatch.plugin.hooks"):
        result = pytester.runpytest_subprocess("-p", name, "--dtdispatch", "--co")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["dtdispatch: *mesh=4 *"])
