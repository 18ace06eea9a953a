"""Processes of an A/B run: interpreters, start, end, and the runs that they save.

A process leaves no children behind when it exits, reaches its time limit, or this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_dtdispatch.ab.checkout import Checkout
from pytest_dtdispatch.core.plain_data import encode
from pytest_dtdispatch.core.text import TextEnum
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.run import ReportedRun, read_run

# The import path includes folders of packages that setuptools installed editable through a finder. Torch is
# searched, because its import takes seconds.
PROBE = """
import importlib.metadata, importlib.util, json, sys, urllib.parse
path = [folder for folder in sys.path if folder]
for name, finder in list(sys.modules.items()):
    if name.startswith("__editable__"):
        for package, folder in getattr(finder, "MAPPING", {}).items():
            inside = "/" + package.replace(".", "/")
            if folder.endswith(inside):
                path.append(folder[:-len(inside)])
urls = [json.loads(each.read_text("direct_url.json") or "{}").get("url", "")
        for each in importlib.metadata.distributions()]
sources = [urllib.parse.unquote(url[7:]) for url in urls if url.startswith("file://")]
versions = [each.version for each in importlib.metadata.distributions(name="pytest-dtdispatch")]
found = dict(plugin=next(iter(versions), ""), has_torch=bool(importlib.util.find_spec("torch")))
print("dtdispatch-probe", json.dumps({**found, "path": path, "sources": sources}))
"""
MAX_LINE_LENGTH = 200


class Variable(TextEnum):
    """Environment variables of a process."""

    OUTPUT = "DTDISPATCH_AB_OUTPUT"  # path of the saved run
    METRIC = "DTDISPATCH_AB_METRIC"  # that it must measure
    ONLY = "DTDISPATCH_AB_ONLY"  # JSON list of tests: other tests do not run
    CHECKOUT = "DTDISPATCH_AB_CHECKOUT"  # a Checkout, as JSON
    PADDING = "DTDISPATCH_AB_PADDING"  # its length shifts the memory layout of the process


@dataclass(frozen=True)
class Arm:
    """A side: interpreter and folders of its processes.

    Args:
        name: ``base`` or ``head``.
        python: interpreter.
        folder: working folder of its processes.
        workspace: folder for its logs and its saved run.
        source: its commit, as typed and its id, and its interpreter.
        checkout: worktree of its commit; None if interpreters are compared.
        path: import path of the interpreter.
        sources: local folders from which distributions of the interpreter were installed.
    """

    name: str
    python: str
    folder: Path
    workspace: Path
    source: str = ""
    checkout: Checkout | None = None
    path: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.python}"


def interpreter(side: str, typed: str) -> str:
    """Return the absolute path of an interpreter, given as a path or a command.

    Links are not resolved: the link identifies a virtual environment.
    """
    found = shutil.which(typed)
    if found is None:
        raise DtDispatchError(f"{side} {typed}: is not an executable: pass the python of an environment")
    return str(Path(found).absolute())


def probe(arm: Arm) -> Arm:
    """Return a side with the paths of its interpreter, whose version of the plugin is checked.

    Raises:
        DtDispatchError: it does not respond, or lacks torch or this version of the plugin.
    """
    log = arm.workspace / f"{arm.name}-probe.log"
    status = run_to_end(arm, ["-c", PROBE], {}, log, 120.0)
    if status is None:
        raise DtDispatchError(f"{arm}: did not respond within 120 s")
    lines, prefix = last_lines(log), "dtdispatch-probe "
    try:
        answer = "" if status else next(line for line in reversed(lines) if line.startswith(prefix))
        found = json.loads(answer.removeprefix(prefix))
        plugin, has_torch = found["plugin"], found["has_torch"]
        arm = replace(arm, path=tuple(found["path"]), sources=tuple(found["sources"]))
    except (StopIteration, ValueError, TypeError, KeyError):
        how = lines[-1][:MAX_LINE_LENGTH] if lines else f"exit status {status} without output"
        raise DtDispatchError(f"{arm}: is not a working Python interpreter: {how}") from None
    ours = version("pytest-dtdispatch")
    if plugin != ours:
        has = f"pytest-dtdispatch {plugin}" if plugin else "no pytest-dtdispatch"
        remedy = f"pip install pytest-dtdispatch=={ours}"
        raise DtDispatchError(f"{arm}: has {has}, but both sides need the version of this process: {remedy}")
    if not has_torch:
        raise DtDispatchError(f"{arm}: has no torch")
    return arm


def run_pytest(
    arm: Arm, words: Sequence[str], variables: Mapping[str, str], time_limit_s: float
) -> ReportedRun:
    """Measure in a process of a side, and return the run that it saves.

    Args:
        arm: the side.
        words: flags and arguments of pytest.
        variables: additional environment variables.
        time_limit_s: seconds after which it is killed.

    Raises:
        ProcessError: it saves no valid run; the message has the path of its log.
    """
    log, output = arm.workspace / f"{arm.name}.log", arm.workspace / f"{arm.name}.json"
    output.unlink(missing_ok=True)
    plugins = ("-p", "pytest_dtdispatch.plugin.ab_process", "-p", "no:cacheprovider")
    words = ["-m", "pytest", *plugins, "--dtdispatch", *words]
    variables = {**variables, Variable.OUTPUT: str(output)}
    if arm.checkout:
        variables[Variable.CHECKOUT] = json.dumps(encode(arm.checkout))
    status = run_to_end(arm, words, variables, log, time_limit_s)
    if status is None:
        limit = f"killed after {time_limit_s:g} s: raise --time-limit"
        raise ProcessError(f"{arm}: {limit}; log: {log}")
    if status or not output.exists():
        raise ProcessError(f"{arm}: {_failure(status, last_lines(log))}; log: {log}")
    try:
        run = read_run(output, allows_empty=True)
    except ValueError as error:
        raise ProcessError(f"{arm}: {error}; log: {log}") from None
    if run.refusal:
        raise DtDispatchError(f"{arm}: {run.refusal}")
    if arm.checkout and not run.imports:
        remedy = "name its own after --, such as -- tests/test_step.py"
        raise DtDispatchError(f"{arm}: the tests import no module of this repository: {remedy}")
    return run


def _failure(status: int, lines: Sequence[str]) -> str:
    """Describe why a process saved no run, by its exit status and its last output."""
    if status < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"died of {names.get(-status, f'signal {-status}')}"
    last = next((line for line in reversed(lines) if not line.startswith("=")), "")
    meanings = {0: "measured nothing; its last output", 1: "tests failed", 5: "no test was collected"}
    # The first line of a usage error of pytest is the usage.
    details = [line for line in lines if status == 4 and ": error: " in line]
    details += [line for prefix in ("FAILED ", "ERROR", "E   ") for line in lines if line.startswith(prefix)]
    meaning = meanings.get(status, f"exit status {status}")
    return f"{meaning}: {[*details, last][0][:MAX_LINE_LENGTH]}"


def last_lines(log: Path) -> list[str]:
    """Return the last non-empty lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64 * 1024))
        text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def run_to_end(
    arm: Arm, words: Sequence[str], variables: Mapping[str, str], log: Path, time_limit_s: float
) -> int | None:
    """Run a process in its own process group, and kill the group when the process ends for any reason.

    Returns:
        Its exit status, negative for a signal; None if it reached its time limit.

    Raises:
        DtDispatchError: the process cannot be started.
    """
    # A fixed hash seed would hide the effect of the seed, not remove it. Local ops must not wait for a second
    # thread, because dispatch is measured.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if arm.checkout:
        folders = (arm.checkout.installed, *arm.checkout.import_path, ours.get("PYTHONPATH"))
        ours["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    process: subprocess.Popen[bytes] | None = None
    watcher: subprocess.Popen[bytes] | None = None
    with log.open("wb") as out:
        try:
            with signals_deferred():  # no interrupt between the start of a process and the assignment
                process = subprocess.Popen(
                    [arm.python, *words],
                    cwd=arm.folder,
                    env={"OMP_NUM_THREADS": "1", **ours, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                # Its pipe closes when this process is killed: then it kills the group of the process.
                watcher = subprocess.Popen(
                    ["sh", "-c", 'read -r _; kill -9 "-$0"', str(process.pid)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise DtDispatchError(f"{arm}: cannot be started: {error.strerror or error}") from None
        finally:
            if process is not None:
                with signals_deferred():
                    if watcher is not None:
                        watcher.kill()
                        watcher.communicate()
                    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C and similar signals to the end of a block."""
    received: list[int] = []
    with stopping_handled_by(lambda number, frame: received.append(number)):
        yield
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def stopping_handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Temporarily install a handler for signals that terminate this process."""
    numbers = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    before = {number: signal.signal(number, handler) for number in numbers if number is not None}
    try:
        yield
    finally:
        for number, original in before.items():
            signal.signal(number, original)
