"""What pytest costs a user who measures nothing: no torch, and what is shown of us without it."""

from __future__ import annotations

import fnmatch

import pytest

from pytest_dtdispatch.plugin.settings import KEYWORDS, WITH_FLAG

# A conftest that tells what was imported by the end of the run.
TELL = """
import sys

def pytest_unconfigure():
    rooms = ("torchapi", "measuring", "meshes", "ranks")
    # These need no torch: what a sampler is, and how rows of ranks are merged and shown.
    light = ("measuring", "measuring.sampler", "ranks", "ranks.merge", "ranks.table")
    ours = (name.removeprefix("pytest_dtdispatch.") for name in sys.modules if "pytest_dtdispatch." in name)
    heavy = sorted(name for name in ours if name.partition(".")[0] in rooms and name not in light)
    print("imported:", *(name for name in ("torch", "numpy") if name in sys.modules), *heavy, "end")
"""
INI = """
[pytest]
dtdispatch_rounds = 5
dtdispatch_mesh = 2x4
dtdispatch_backend = fake
dtdispatch_ops = add*
"""
# A conftest that tells what of ours was imported.
TELL_OURS = """
import sys

def pytest_unconfigure():
    print("ours:", *sorted(name[18:] for name in sys.modules if name.startswith("pytest_dtdispatch.")), "end")
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
# Without plugins that import more than a run needs, as pytest-randomly does NumPy.
OTHERS = ("hypothesispytest", "xdist", "codspeed", "randomly", "asyncio", "rerunfailures", "timeout")
FAST = ("-pno:cacheprovider", *(f"-pno:{name}" for name in OTHERS))


def run_alone(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own, where nothing is imported yet."""
    pytester.makeconftest(TELL)
    return pytester.runpytest_subprocess(*FAST, *args)


@pytest.mark.parametrize("ini", ["", INI], ids=["", "ini"])
def test_a_run_of_a_test_without_torch_does_not_import_torch(pytester: pytest.Pytester, ini: str) -> None:
    pytester.makeini(ini or "[pytest]\n")
    pytester.makepyfile(TESTS)
    result = run_alone(pytester)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["imported: end"])


@pytest.mark.parametrize("args", [(), ("--co",)])
def test_a_run_that_does_not_measure_imports_the_hooks_and_one_table(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makeconftest(TELL_OURS)
    pytester.makepyfile("def test_nothing(tmp_path): pass")
    result = pytester.runpytest_subprocess(*FAST, *args)
    result.stdout.fnmatch_lines(["ours: plugin plugin.hooks plugin.settings end"])


@pytest.mark.parametrize("args", [(), ("--dtdispatch",), ("--dtdispatch-all", "--benchmark-only")])
def test_collecting_does_not_import_torch_and_only_measuring_has_a_header(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(TESTS, test_fixtures=WITH_FIXTURES)
    result = run_alone(pytester, "--co", *args)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*3 tests collected*", "imported: end"])
    headers = [line for line in result.outlines if line.startswith("dtdispatch:")]
    if args:
        assert fnmatch.fnmatchcase(headers.pop(), "dtdispatch: load *")
    says = "dtdispatch: *(mesh=2x4 device=auto backend=fake rounds=5 repeat=10 max_time=1s ops=add[*])"
    assert len(headers) == (1 if args else 0)
    assert all(fnmatch.fnmatchcase(header, says) for header in headers)


def test_a_mistake_in_a_flag_does_not_import_torch(pytester: pytest.Pytester) -> None:
    result = run_alone(pytester, "--dtdispatch", "--dtdispatch-mesh=2x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["imported: end"])


def test_the_fixture_alone_does_not_import_torch_unmeasured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_unmeasured(dtdispatch): assert not dtdispatch.enabled")
    result = run_alone(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["imported: end"])


@pytest.mark.torch
def test_torch_is_imported_by_a_run_that_measures(pytester: pytest.Pytester) -> None:
    # The check of the other tests can fail.
    pytester.makepyfile(WITH_FIXTURES)
    result = run_alone(pytester, "--dtdispatch")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["imported: torch * torchapi *"])


@pytest.mark.parametrize("name", ["pytest_dtdispatch.plugin", "pytest_dtdispatch.plugin.hooks"])
def test_the_plugin_is_found_by_the_name_of_its_package_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", name, "--dtdispatch", "--co")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["dtdispatch: *(mesh=4 *"])


def test_help_says_each_flag_once(pytester: pytest.Pytester) -> None:
    result = run_alone(pytester, "--help")
    assert result.ret == pytest.ExitCode.OK
    words = result.stdout.str().split()
    text = " ".join(words)
    flags = {word.split("=")[0].rstrip(",") for word in words if word.startswith("--dtdispatch")}
    assert flags == {setting.flag for setting in WITH_FLAG}
    assert len(flags) <= 18
    for setting in WITH_FLAG:
        assert "".join(words).count(setting.help.replace(" ", "")) == 1  # lines may break after a hyphen
        assert f"as {setting.flag}, which beats it" in text
    for default in ("(default: 20)", "(default: 10)", "(default: 1.0)", "(default: 4)", "(default: auto)"):
        assert default in text
    result.stdout.fnmatch_lines(["DTensor dispatch overhead:", "imported: end"])


def test_markers_lists_ours_with_every_keyword(pytester: pytest.Pytester) -> None:
    result = run_alone(pytester, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.dtdispatch(rounds=..., *, mesh=..., *): *", "imported: end"])
    line = next(line for line in result.outlines if "mark.dtdispatch" in line)
    assert all(f"{keyword}=..." in line for keyword in KEYWORDS)


def test_fixtures_are_listed_with_what_they_give(pytester: pytest.Pytester) -> None:
    result = run_alone(pytester, "--fixtures")
    for fixture in ("dtdispatch", "device_mesh", "mesh_factory", "process_group"):
        result.stdout.fnmatch_lines([f"{fixture} -- *", "    [A-Z]*"])
    result.stdout.fnmatch_lines(["imported: end"])
