"""Contents of wheel and sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ci.pull_requests import ROOT

pytestmark = [
    pytest.mark.skipif(not find_spec("hatchling"), reason="hatchling is not installed: pip install .[dev]"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the tracked files"),
]
BUILD = "import sys; from hatchling.build import *; build_wheel(sys.argv[1]); build_sdist(sys.argv[2])"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the file names of each package."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("wheel", "sdist")}
    subprocess.run([sys.executable, "-c", BUILD, *map(str, folders.values())], cwd=ROOT, check=True)
    return {kind: {*_names(*folder.iterdir())} for kind, folder in folders.items()}


def _names(path: Path) -> list[str]:
    if path.suffix == ".whl":
        return zipfile.ZipFile(path).namelist()
    with tarfile.open(path) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def tracked(*folders: str) -> set[str]:
    command = ["git", "-C", str(ROOT), "ls-files", *folders]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


def test_wheel_contains_only_the_package(built: dict[str, set[str]]) -> None:
    package = {name.removeprefix("src/") for name in tracked("src")}
    files = {name for name in built["wheel"] if ".dist-info/" not in name}
    assert files == package | {
        "pytest_dtdispatch/SKILL.md",
        "pytest_dtdispatch/docs/_static/results.schema.json",
    }
    assert "pytest_dtdispatch/py.typed" in files  # otherwise type checkers treat the package as untyped
    of_metadata = {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert {name.partition("/")[2] for name in built["wheel"] - files} >= of_metadata


def test_sdist_can_build_and_test_the_package(built: dict[str, set[str]]) -> None:
    folders = ("src", "tests", "docs", "benchmarks", "tools", "ci", ".github")
    assert tracked(*folders) <= built["sdist"]
    assert {"pyproject.toml", "conftest.py", "noxfile.py", "action.yml"} <= built["sdist"]
    assert {"README.md", "LICENSE", "CHANGELOG.md"} <= built["sdist"]
    assert not {name for name in built["sdist"] if name.startswith((".venv", ".git/", "dist/"))}


def test_conftest_loads_without_hypothesis() -> None:
    """Pytest loads ``tests/conftest.py`` for every run in this folder."""
    program = "import runpy, sys; sys.modules['hypothesis'] = None; runpy.run_path('tests/conftest.py')"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
