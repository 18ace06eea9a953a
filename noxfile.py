"""Every supported version, one environment at a time: ``nox`` runs all sessions, ``nox -s torch-2.9.1`` one.

What is tested is the wheel, installed as users install it, with the tests of this checkout. An environment is
removed at the end of its session, as one takes up to 7 GB; ``nox --reuse-existing-virtualenvs`` keeps it.
``.nox/sessions.md`` has a line for each session, also for one that never ran.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nox

ROOT = Path(__file__).parent
FOLDER = ROOT / ".nox"
LINES = FOLDER / "lines"
TABLE = FOLDER / "sessions.md"

# Each torch on one of the Pythons that it has wheels for: all of them are tried, 2.15 has none for 3.10.
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
TORCH = "2.13.0"  # of every other session
# The newest of both is what sessions of torch have. No pytest-benchmark after 5.0.1 takes pytest 8.0, and the
# fixture of those before 5.3.1 breaks on pytest 9.2: 9.1 is the newest that takes the lowest.
PAIRS = {
    "pytest-8.0-benchmark-5.0.0": ("pytest==8.0.*", "pytest-benchmark==5.0.0"),
    "pytest-8.0-benchmark-newest": ("pytest==8.0.*", "pytest-benchmark"),
    "pytest-9.1-benchmark-5.0.0": ("pytest==9.1.*", "pytest-benchmark==5.0.0"),
}
PLUGINS = {
    "xdist": "pytest-xdist",
    "codspeed": "pytest-codspeed",
    "rerunfailures": "pytest-rerunfailures",
    "timeout": "pytest-timeout",
    "randomly": "pytest-randomly",
    "asyncio": "pytest-asyncio",
}
TEST = ("-p", "no:cacheprovider", "-m", "not long and not sweep")
TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
QUICK = ("--dtdispatch-rounds=5", "--dtdispatch-max-time=0.2")
SUITE = ("--dtdispatch", *QUICK, "--pyargs", "pytest_dtdispatch.suite")

BUILD = "import sys; from hatchling.build import build_wheel as build; print(build(sys.argv[1]))"
INSTALLED = """
import importlib.metadata, importlib.util, json, pathlib, sys
found = pathlib.Path(importlib.util.find_spec("pytest_dtdispatch").origin)
if pathlib.Path(sys.prefix).resolve() not in found.resolve().parents:
    sys.exit(f"{found} is under test, and not what is installed in {sys.prefix}")
names = ("torch", "pytest", "pytest-benchmark")
versions = [importlib.metadata.version(name) for name in names]
print(json.dumps([sys.version.split()[0], *versions]))
"""

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True
if "PIP_FIND_LINKS" in os.environ:  # uv does not read what is set for pip
    os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"].replace(" ", ","))


@dataclass
class Line:
    """What the table says of one session."""

    session: str
    verdict: str = "failed before its tests"
    versions: list[str] = field(default_factory=lambda: [""] * 4)  # Python, torch, pytest, pytest-benchmark
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, report: Path) -> None:
        """Add a report that pytest wrote with ``--junitxml``."""
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if (skip := case.find("skipped")) is not None:
                reason = skip.get("message", "").strip() or "no reason given"
                self.skipped[reason] = self.skipped.get(reason, 0) + 1
            elif case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            else:
                self.passed += 1

    @property
    def row(self) -> str:
        """As a row of the table."""
        numbers = (self.passed, self.failed, sum(self.skipped.values()), f"{self.seconds:.0f}")
        return f"| {' | '.join(map(str, (self.session, self.verdict, *self.versions, *numbers)))} |"


def read_lines(names: Sequence[str]) -> list[Line]:
    """Give the latest line of every session, and one that says so where it never ran."""
    files = {name: LINES / f"{name}.json" for name in names}
    return [
        Line(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else Line(name, "did not run")
        for name, file in files.items()
    ]


def lay_out(lines: Sequence[Line]) -> str:
    """Lay out the table, with the reasons why tests were skipped, and how many for each."""
    versions = ("Python", "torch", "pytest", "pytest-benchmark")
    titles = ("session", "verdict", *versions, "passed", "failed", "skipped", "seconds")
    table = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *(line.row for line in lines)]
    where: dict[str, list[str]] = {}
    for line in lines:
        for reason, count in line.skipped.items():
            where.setdefault(reason.splitlines()[0], []).append(f"{line.session} ({count})")
    reasons = [f"* {reason}: {', '.join(places)}" for reason, places in sorted(where.items())]
    skipped = ["Skipped:", "", *reasons] if reasons else ["Nothing was skipped."]
    return "\n".join([*table, "", *skipped, ""])


class Trial:
    """One session: its wheel, its environment, and its line in the table."""

    def __init__(self, session: nox.Session, line: Line) -> None:
        self._session = session
        self._wheel = build_wheel(session)
        self._line = line

    def install(self, *requirements: str, extra: str = "report") -> None:
        """Install the wheel with an extra and what else is asked for, and see that it is what is imported."""
        self._session.install(f"{self._wheel}[{extra}]", *requirements)
        said = self._session.run("python", "-c", INSTALLED, silent=True, env={"PYTHONPATH": None})
        self._line.versions = json.loads(str(said))

    def test(self, *arguments: str) -> None:
        """Run pytest once; its report is added to the line whether tests fail or pass."""
        report = LINES / f"{self._session.name}.xml"
        report.unlink(missing_ok=True)
        command = ("python", "-m", "pytest", f"--junitxml={report}", *arguments)
        self._line.verdict = "failed"
        try:
            self._session.run(*command, env={"PYTHONPATH": None, "OMP_NUM_THREADS": "1"})
        finally:
            if report.exists():
                self._line.add(report)


@contextlib.contextmanager
def trial(session: nox.Session) -> Iterator[Trial]:
    """Write the line of a session at its end, and remove its environment."""
    began = time.monotonic()
    atexit.register(print_table)
    line = Line(session.name)
    try:
        yield Trial(session, line)
        line.verdict = "passed"
    finally:
        line.seconds = time.monotonic() - began
        LINES.mkdir(parents=True, exist_ok=True)
        (LINES / f"{session.name}.json").write_text(json.dumps(asdict(line)), encoding="utf-8")
        if not getattr(session.virtualenv, "reuse_existing", False):
            shutil.rmtree(session.virtualenv.location, ignore_errors=True)


@functools.cache
def _dist() -> Path:
    """Give an empty folder for the wheel of this run."""
    shutil.rmtree(FOLDER / "dist", ignore_errors=True)
    return FOLDER / "dist"


def build_wheel(session: nox.Session) -> Path:
    """Build the wheel of this checkout, once for all sessions of a run."""
    folder = _dist()
    if not any(folder.glob("*.whl")):
        session.install("hatchling>=1.24")
        session.run("python", "-c", BUILD, str(folder))
    [wheel] = folder.glob("*.whl")
    return wheel


def test_tools() -> list[str]:
    """Give what tests need, less nox and plugins of pytest: sessions say which of those they have."""
    extra = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["test"]
    return [one for one in extra if not one.startswith(("pytest-", "nox"))]


@functools.cache
def print_table() -> None:
    """Write the table of all sessions, and print it; once, when nox ends."""
    TABLE.write_text(lay_out(read_lines(SESSIONS)), encoding="utf-8")
    print(f"\n{TABLE.read_text(encoding='utf-8')}\n{TABLE}", flush=True)


def on_torch(version: str, session: nox.Session) -> None:
    """Run all tests on one torch, with the newest of everything else."""
    with trial(session) as one:
        one.install(f"torch=={version}", extra="test")
        one.test(*TEST, *TWO_AT_A_TIME, *session.posargs)


def on_pair(pair: Sequence[str], session: nox.Session) -> None:
    """Run all tests on a pytest and a pytest-benchmark."""
    with trial(session) as one:
        one.install(f"torch=={TORCH}", *pair, extra="test")
        one.test(*TEST, *TWO_AT_A_TIME, *session.posargs)


def with_plugin(plugin: str, session: nox.Session) -> None:
    """Run the tests of the plugin, and the built-in suite, beside one other plugin."""
    with trial(session) as one:
        one.install(f"torch=={TORCH}", *test_tools(), PLUGINS[plugin])
        one.test(*TEST, *(TWO_AT_A_TIME if plugin == "xdist" else ()), "tests/plugin", *session.posargs)
        one.test(*SUITE)


def with_plugins(plugins: Sequence[str], session: nox.Session) -> None:
    """Run all tests, and the built-in suite, beside all other plugins, or beside none."""
    with trial(session) as one:
        one.install(f"torch=={TORCH}", *test_tools(), *plugins)
        one.test(*TEST, *(TWO_AT_A_TIME if plugins else ()), *session.posargs)
        one.test(*SUITE)


def types(session: nox.Session) -> None:
    """Check a user's code against the wheel, by mypy and by pyright, and run it."""
    with trial(session) as one:
        one.install(f"torch=={TORCH}", "mypy>=1.11", "pyright[nodejs]>=1.1.400", "numpy")
        with (
            tempfile.TemporaryDirectory() as folder,
            session.chdir(folder),
        ):  # no settings of ours are near it
            shutil.copytree(ROOT / "tests" / "typing", folder, dirs_exist_ok=True)
            session.run("mypy", "--strict", "--config-file=", "--cache-dir=.mypy_cache", ".")
            session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"), "--warnings", ".")
            one.test("-o", "markers=torch", "-q", *session.posargs)
            one.test("-o", "markers=torch", "-q", "--dtdispatch", *QUICK, *session.posargs)


def package(session: nox.Session) -> None:
    """Build wheel and sdist, and hold what is in them."""
    with trial(session) as one:
        one.install(f"torch=={TORCH}", *test_tools())
        one.test("-p", "no:cacheprovider", "tests/ci/test_packages.py", *session.posargs)


def _declare() -> list[str]:
    """Declare all sessions to nox, and give their names."""
    sessions: dict[str, Callable[[nox.Session], None]] = {
        **{f"torch-{version}": _given(on_torch, version) for version in PYTHONS},
        **{name: _given(on_pair, pair) for name, pair in PAIRS.items()},
        **{f"with-{name}": _given(with_plugin, name) for name in PLUGINS},
        "with-all-plugins": _given(with_plugins, tuple(PLUGINS.values())),
        "without-plugins": _given(with_plugins, ()),
        "types": types,
        "package": package,
    }
    for name, run in sessions.items():
        nox.session(python=PYTHONS.get(name.removeprefix("torch-"), PYTHONS[TORCH]), name=name)(run)
    return list(sessions)


def _given(run: Callable[[Any, nox.Session], None], value: object) -> Callable[[nox.Session], None]:
    """Give a session its first argument, and keep what it says of itself for ``nox --list``."""
    session = functools.partial(run, value)
    session.__doc__ = run.__doc__
    return session


SESSIONS = _declare()
