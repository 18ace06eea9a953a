"""The processes of an A/B run: what runs each side, how one is started, how it ends, and what it answers.

A process leaves no children behind, whether it ends by itself, at its time limit, or with us.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pytest_dtdispatch.ab.answer import Answer, Variable
from pytest_dtdispatch.ab.checkout import Checkout
from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.core.files import read_json
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.errors import DtDispatchError, ProcessError

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PROBE_SECONDS = 120.0
# The import path has the folders of packages that setuptools installs editable by name, too.
PROBE = """
import importlib.metadata, importlib.util, json, platform, sys, urllib.parse
path = [folder for folder in sys.path if folder]
for name, finder in list(sys.modules.items()):
    if name.startswith("__editable__"):
        for package, folder in getattr(finder, "MAPPING", {}).items():
            inside = "/" + package.replace(".", "/")
            path += [folder[:-len(inside)]] * folder.endswith(inside)
urls = [json.loads(each.read_text("direct_url.json") or "{}").get("url", "")
        for each in importlib.metadata.distributions()]
sources = [urllib.parse.unquote(url[7:]) for url in urls if url.startswith("file://")]
found = dict(python=platform.python_version(), plugin="", torch="", build="")
for plugin in importlib.metadata.distributions(name="pytest-dtdispatch"):
    found["plugin"] = found["plugin"] or plugin.version
if importlib.util.find_spec("torch"):
    import torch
    found.update(torch=torch.__version__, build=getattr(torch.version, "git_version", None) or "")
print("dtdispatch-probe", json.dumps({**found, "path": path, "sources": sources}))
"""
PROBED = "dtdispatch-probe "
MOST_READ, MOST_SHOWN, MOST_BYTES = 64 * 1024, 200, 64 * 2**20
# It reads our pipe, which closes when we are killed, and then ends the group of the measuring process.
END_WITH_US = 'read -r _; kill -9 "-$0"'
PLUGINS = ("-p", "pytest_dtdispatch.plugin.ab_process", "-p", "no:cacheprovider")
# By exit status what it means, and how the line begins that says more; else the last line does.
FAILURES = {
    0: ("measured nothing, and said last", ()),
    1: ("tests failed", ("FAILED ", "ERROR ")),
    5: ("no test was collected", ()),
}


@dataclass(frozen=True)
class Arm:
    """One side, as ``base`` or ``python-2``: which interpreter runs its processes, and in which folder."""

    name: str
    python: str
    folder: Path
    import_path: tuple[Path, ...] = ()  # folders that it imports from first
    checkout: Checkout | None = None  # of its commit

    def __str__(self) -> str:
        return f"{self.name} {self.python}"


@dataclass(frozen=True)
class Versions:
    """What measures one side, as the interpreter says it before the first process."""

    python: str
    plugin: str
    torch: str
    build: str  # git revision that torch was built from
    cpu: str


class Probed(NamedTuple):
    """What an interpreter answers.

    Args:
        versions: of what measures.
        path: folders that it imports from.
        sources: local folders that its distributions were installed from.
    """

    versions: Versions
    path: list[str]
    sources: list[str]


def interpreter(side: str, typed: str) -> str:
    """Find the interpreter of a side: a path, or a command on the search path.

    The path is made absolute and no link is followed: a virtual environment is known by its link.
    """
    found = shutil.which(typed)
    if found is None:
        raise DtDispatchError(f"{side} {typed}: is not a program: give the python of an environment")
    return str(Path(found).absolute())


def probe(arm: Arm, workspace: Path) -> Probed:
    """Ask an interpreter what it has; refuse one that cannot measure."""
    log = workspace / f"{arm.name}-probe.log"
    status = run_to_end(arm, ["-c", PROBE], {}, log, PROBE_SECONDS)
    if status is None:
        raise DtDispatchError(f"{arm}: gave no answer in {PROBE_SECONDS:g} s")
    lines = last_lines(log)
    try:
        answer = "" if status else next(line for line in reversed(lines) if line.startswith(PROBED))
        found = json.loads(answer.removeprefix(PROBED))
        path, sources = found.pop("path", []), found.pop("sources", [])
        versions = Versions(cpu=cpu_model(), **found)
    except (StopIteration, ValueError, TypeError):
        how = lines[-1][:MOST_SHOWN] if lines else f"exit status {status}, and not a word"
        raise DtDispatchError(f"{arm}: is not a python that runs: {how}") from None
    if versions.plugin != (ours := version("pytest-dtdispatch")):
        needs = f"needs pytest-dtdispatch {ours} to measure as this one does, and has"
        remedy = f"pip install pytest-dtdispatch=={ours}"
        raise DtDispatchError(f"{arm}: {needs} {versions.plugin or 'none'}: {remedy}")
    if not versions.torch:
        raise DtDispatchError(f"{arm}: has no torch")
    return Probed(versions, path, sources)


def run_pytest(
    arm: Arm, words: Sequence[str], variables: Mapping[str, str], workspace: Path, time_limit_s: float
) -> Answer:
    """Measure in a process of a side, and return its answer.

    Args:
        arm: the side.
        words: flags and arguments of pytest.
        variables: of its environment, beside those that all have.
        workspace: folder of its log and its answer.
        time_limit_s: seconds after which it is ended.

    Raises:
        ProcessError: it has no answer; the message names its log.
    """
    log, output = workspace / f"{arm.name}.log", workspace / "answer.json"
    output.unlink(missing_ok=True)
    words = ["-m", "pytest", *PLUGINS, "--dtdispatch", *words]
    variables = {**variables, Variable.OUTPUT: str(output)}
    if arm.checkout:
        variables[Variable.CHECKOUT] = json.dumps(encode(arm.checkout))
    status = run_to_end(arm, words, variables, log, time_limit_s)
    if status is None:
        limit = f"not over after {time_limit_s:g} s, and was ended: --time-limit"
        raise ProcessError(f"{arm}: {limit}; log: {log}")
    if status or not output.exists():
        raise ProcessError(f"{arm}: {_failure(status, last_lines(log))}; log: {log}")
    try:
        answer: Answer = decode(Answer, read_json(output))
    except (ValueError, OverflowError, RecursionError) as error:
        raise ProcessError(f"{arm}: wrote something else than its rows: {error}; log: {log}") from None
    if answer.refusal:
        raise DtDispatchError(f"{arm}: {answer.refusal}")
    if arm.checkout and not answer.folders:
        raise DtDispatchError(f"{arm}: imports nothing of this repository: name tests of it after --")
    return answer


def _failure(status: int, lines: Sequence[str]) -> str:
    """Say why a process has no answer: by its status, and by what it said last."""
    if status < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"died of {names.get(-status, f'signal {-status}')}"
    last = next((line for line in reversed(lines) if not line.startswith("=")), "")
    what, marks = FAILURES.get(status, (f"exit status {status}", ("ERROR: ", "E   ")))
    return f"{what}: {next((line for line in lines if line.startswith(marks)), last)[:MOST_SHOWN]}"


def last_lines(log: Path) -> list[str]:
    """Read the last lines of a log that say something."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_READ))
        text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def run_to_end(
    arm: Arm, words: Sequence[str], variables: Mapping[str, str], log: Path, time_limit_s: float
) -> int | None:
    """Run a process in a group of its own, and end the whole group when it is over, however it ended.

    Returns:
        Its exit status, below 0 the signal that ended it; None where it was ended at its time limit.

    Raises:
        DtDispatchError: it cannot be run.
    """
    process: subprocess.Popen[bytes] | None = None
    watcher: subprocess.Popen[bytes] | None = None
    with log.open("wb") as out:
        try:
            with signals_deferred():  # no interrupt between the start of a process and our knowing of it
                process = subprocess.Popen(
                    [arm.python, *words],
                    cwd=arm.folder,
                    env=_environment(arm, variables),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                command = ["sh", "-c", END_WITH_US, str(process.pid)]
                watcher = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise DtDispatchError(f"{arm}: cannot be run: {error.strerror or error}") from None
        finally:
            if process is not None:
                with signals_deferred():
                    if watcher is not None:
                        watcher.kill()
                        watcher.communicate()
                    _end_group(process)
                    process.wait()


def _environment(arm: Arm, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: ours, with a hash seed of its own and one thread.

    A fixed seed would hide what the seed does, and not take it away. What is measured is dispatch: a local op
    must not wait for a second thread.
    """
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    folders = [*map(str, arm.import_path), ours.get("PYTHONPATH", "")]
    if arm.import_path:
        ours["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return {"OMP_NUM_THREADS": "1", **ours, **variables}


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold back Ctrl-C and its like while a block runs; one that came is obeyed at the end of the block."""
    came: list[int] = []
    with stopping_handled_by(lambda number, frame: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def stopping_handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle what ends this process, or closes its terminal, while a block runs."""
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, theirs)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is empty: all have ended
        os.killpg(process.pid, signal.SIGKILL)
