"""Test every supported version: ``nox`` runs all sessions, ``nox -s torch-2.9.1`` one.

Sessions test the wheel, installed as users install it, with the tests of this checkout. An environment takes
up to 7 GB and is removed at the end of its session; ``nox --reuse-existing-virtualenvs`` keeps it.
``nox --report FILE`` writes the outcome of each session.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).parent
# Each torch runs on one Python for which it has wheels; together they cover all. 2.15 has none for 3.10.
PYTHONS = {
    "2.5.1": "3.10",
    "2.7.1": "3.12",
    "2.9.1": "3.11",
    "2.10.0": "3.13",
    "2.11.0": "3.12",
    "2.12.1": "3.10",
    "2.13.0": "3.11",
    "2.14.1": "3.12",
    "2.15.0": "3.13",
}
TORCH = "2.13.0"  # of all other sessions
# Sessions of torch use the newest of both. pytest-benchmark after 5.0.1 does not support pytest 8.0, and its
# fixture before 5.3.1 fails on pytest 9.2, so 9.1 is the newest that works with the oldest.
PAIRS = {
    "pytest-8.0-benchmark-5.0.0": ("pytest==8.0.*", "pytest-benchmark==5.0.0"),
    "pytest-8.0-benchmark-newest": ("pytest==8.0.*", "pytest-benchmark"),
    "pytest-9.1-benchmark-5.0.0": ("pytest==9.1.*", "pytest-benchmark==5.0.0"),
}
PLUGINS = ("xdist", "codspeed", "rerunfailures", "timeout", "randomly", "asyncio")
ALONE = ("-p", "no:cacheprovider", "-rs", "-m", "not long and not sweep")
IN_PAIRS = (*ALONE, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# Of the long tests, those whose interfaces of torch differ most between its versions.
DIFFERING = "rank or fsdp or freed or without_a_name or scripts or nothing_behind or decoding"
RANKS = ("-p", "no:cacheprovider", "-rs", "-m", "long", "-k", DIFFERING)
QUICK = ("--dtdispatch", "--dtdispatch-rounds=5", "--dtdispatch-max-time=0.2")
SUITE = (*QUICK, "--pyargs", "pytest_dtdispatch.suite")
BUILD = "import sys; from hatchling.build import build_wheel as build; print(build(sys.argv[1]))"
INSTALLED = """
import importlib.util, pathlib, sys
found = pathlib.Path(importlib.util.find_spec("pytest_dtdispatch").origin).resolve()
if pathlib.Path(sys.prefix).resolve() not in found.parents:
    sys.exit(f"{found} is tested instead of the copy installed in {sys.prefix}")
"""
_, *TEST_EXTRA = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["test"]
# The test extra without nox and pytest plugins: each session declares its plugins.
TOOLS = tuple(one for one in TEST_EXTRA if not one.startswith(("pytest-", "nox")))

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True
if "PIP_FIND_LINKS" in os.environ:  # uv does not read the settings of pip
    os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"].replace(" ", ","))


@dataclass(frozen=True)
class Tests:
    """Requirements of a session besides the wheel, and the runs of pytest that must pass."""

    requirements: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...]
    python: str = PYTHONS[TORCH]
    torch: str = TORCH


def beside(*plugins: str, tests: tuple[str, ...] = ()) -> Tests:
    """Return runs of the tests and of the built-in suite with only these pytest plugins."""
    run = IN_PAIRS if "xdist" in plugins else ALONE
    return Tests((*TOOLS, *(f"pytest-{plugin}" for plugin in plugins)), ((*run, *tests), SUITE))


SESSIONS = {
    **{
        f"torch-{torch}": Tests(tuple(TEST_EXTRA), (IN_PAIRS, RANKS), of, torch)
        for torch, of in PYTHONS.items()
    },
    **{name: Tests((*TEST_EXTRA, *pair), (IN_PAIRS,)) for name, pair in PAIRS.items()},
    **{f"with-{plugin}": beside(plugin, tests=("tests/plugin",)) for plugin in PLUGINS},
    "with-all-plugins": beside(*PLUGINS),
    "without-plugins": beside(),
    "types": Tests((*TOOLS, "mypy>=1.11", "pyright[nodejs]>=1.1.400", "numpy"), ()),
    "package": Tests(TOOLS, (("-p", "no:cacheprovider", "tests/ci/test_packages.py"),)),
}


@functools.cache
def wheel_folder() -> Path:
    """Return the folder for the wheel of this run, emptied on the first call."""
    shutil.rmtree(ROOT / ".nox" / "dist", ignore_errors=True)
    return ROOT / ".nox" / "dist"


def install(session: nox.Session, tests: Tests) -> None:
    """Build the wheel once for all sessions, install it, and check that it is the copy that is imported."""
    folder = wheel_folder()
    if not any(folder.glob("*.whl")):
        session.install("hatchling>=1.24")
        session.run("python", "-c", BUILD, str(folder))
    [wheel] = folder.glob("*.whl")
    session.install(f"{wheel}[report]", f"torch=={tests.torch}", *tests.requirements)
    session.run("python", "-c", INSTALLED, env={"PYTHONPATH": None})


def check_types(session: nox.Session) -> None:
    """Check a user's code by mypy and pyright outside the checkout, and run it."""
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        shutil.copytree(ROOT / "tests" / "typing", folder, dirs_exist_ok=True)
        session.run("mypy", "--strict", "--config-file=", "--cache-dir=.mypy_cache", ".")
        session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"), "--warnings", ".")
        for flags in ((), QUICK):
            session.run(
                "python", "-m", "pytest", "-o", "markers=torch", "-q", *flags, env={"PYTHONPATH": None}
            )


def run_tests(session: nox.Session) -> None:
    """Run the tests of a session on its versions."""
    tests = SESSIONS[session.name]
    try:
        install(session, tests)
        if session.name == "types":
            check_types(session)
        for run in tests.runs:
            if run is RANKS and session.posargs:  # selected tests may all be deselected there
                continue
            given = () if run is SUITE else session.posargs
            session.run(
                "python", "-m", "pytest", *run, *given, env={"PYTHONPATH": None, "OMP_NUM_THREADS": "1"}
            )
    finally:
        if not getattr(session.virtualenv, "reuse_existing", False):
            shutil.rmtree(session.virtualenv.location, ignore_errors=True)


for name, tests in SESSIONS.items():
    nox.session(python=tests.python, name=name)(run_tests)
