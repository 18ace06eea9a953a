"""The cost of the plugin in a run that measures nothing: torch is not imported."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

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
MAIN = """
import json, sys
import pytest

for args in json.loads(sys.argv[1]):
    print("status:", int(pytest.main(args)), flush=True)
"""
# By name of a run: its arguments. They run in one process, the one with the fewest imports first.
RUNS = {
    "": ("-cnone.ini", "test_nothing.py"),
    "ini": ("-call.ini", "test_marked.py"),
    "collecting": ("-call.ini", "--co", "test_marked.py", "test_fixtures.py"),
    "collecting to measure": (
        *("-call.ini", "--co", "test_marked.py", "test_fixtures.py"),
        *("--dtdispatch-all", "--benchmark-only"),
    ),
    "mistake": ("-cnone.ini", "--dtdispatch", "--dtdispatch-mesh=2x"),
    "fixture": ("-cnone.ini", "test_unmeasured.py"),
    "markers": ("-cnone.ini", "--markers"),
    "fixtures": ("-cnone.ini", "--fixtures", "test_unmeasured.py"),
}


def run_alone(folder: Path, *runs: tuple[str, ...]) -> list[pytest.LineMatcher]:
    """Run pytest in a subprocess, where nothing is imported yet; return the output of each run."""
    (folder / "conftest.py").write_text(PRINT_IMPORTS)
    words = json.dumps([(*FAST, "--basetemp=base", *args) for args in runs])
    command = [sys.executable, "-c", MAIN, words]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found = [text.splitlines() for text in re.findall(r"(?s).*?^status: \d$", done.stdout, re.MULTILINE)]
    assert len(found) == len(runs)
    return [pytest.LineMatcher(lines) for lines in found]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pytest.LineMatcher]:
    """Return the output of each of RUNS."""
    folder = tmp_path_factory.mktemp("unmeasured")
    files = {
        "none.ini": "[pytest]\n",
        "all.ini": INI,
        "test_nothing.py": "def test_nothing(tmp_path): pass",
        "test_marked.py": TESTS,
        "test_fixtures.py": WITH_FIXTURES,
        "test_unmeasured.py": "def test_unmeasured(dtdispatch): assert not dtdispatch.enabled",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return dict(zip(RUNS, run_alone(folder, *RUNS.values()), strict=True))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("", ["imported: end", "ours: plugin plugin.guard plugin.hooks plugin.settings end", "status: 0"]),
        ("ini", ["imported: end", "status: 0"]),
        ("mistake", ["imported: end", f"status: {int(pytest.ExitCode.USAGE_ERROR)}"]),
        ("fixture", ["*1 passed*", "imported: end", "status: 0"]),
        ("markers", ["@pytest.mark.dtdispatch(rounds=..., *, mesh=..., *): *", "imported: end", "status: 0"]),
        (
            "fixtures",
            [
                *(f"{name} -- *" for name in ("device_mesh", "dtdispatch", "mesh_factory", "process_group")),
                *("imported: end", "status: 0"),
            ],
        ),
    ],
)
def test_unmeasured_run_does_not_import_torch(
    outputs: dict[str, pytest.LineMatcher], name: str, lines: list[str]
) -> None:
    """Without settings, only hooks, their guards and settings are imported."""
    for line in lines:
        outputs[name].fnmatch_lines([line])


@pytest.mark.parametrize("measures", [False, True])
def test_torch_is_imported_late_and_measuring_has_header(
    outputs: dict[str, pytest.LineMatcher], measures: bool
) -> None:
    """Collection does not import torch, and only a measuring run has a header."""
    output = outputs["collecting to measure" if measures else "collecting"]
    output.fnmatch_lines(["*3 tests collected*", "imported: end", "*", "status: 0"])
    headers = [line for line in output.lines if line.startswith("dtdispatch:")]
    message = (
        "dtdispatch: *, metric=time mesh=2x4 device=auto backend=fake",
        "dtdispatch: rounds=5 repeat=10 max_time=1s ops=add[*]",
        "dtdispatch: load *",
    )
    assert len(headers) == (len(message) if measures else 0)
    assert all(map(fnmatch.fnmatchcase, headers, message))


@pytest.mark.torch
def test_measuring_run_imports_torch(pytester: pytest.Pytester) -> None:
    # Proves that the check of the other tests can fail.
    pytester.makepyfile(WITH_FIXTURES)
    [output] = run_alone(pytester.path, ("--dtdispatch",))
    output.fnmatch_lines(["*= 1 passed*", "imported: torch * torchapi *"])


def test_plugin_has_its_package_name(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TESTS)
    for name in ("pytest_dtdispatch.plugin", "pytest_dtdispatch.plugin.hooks"):
        result = pytester.runpytest_inprocess("-p", name, "--dtdispatch", "--co")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["dtdispatch: *mesh=4 *"])
