"""The processes of an A/B run: what runs each side, how one is started, how it ends, and what it answers.

A process leaves no children behind, whether it ends by itself, at its time limit, or with us.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.ab_answer import KIND, OUTPUT, PASSES, Answer, AnswerKind
from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.core.files import read_text
from pytest_dtdispatch.core.plain_data import decode
from pytest_dtdispatch.errors import DtDispatchError, ProcessError

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
PROBE_SECONDS, GIT_SECONDS = 120.0, 600
PROBE = """
import importlib.metadata, importlib.util, json, platform
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
found = {"plugin": version("pytest-dtdispatch") if importlib.util.find_spec("pytest_dtdispatch") else ""}
found["python"], found["torch"], found["build"] = platform.python_version(), "", ""
if importlib.util.find_spec("torch"):
    import torch
    found["torch"] = torch.__version__
    found["build"] = getattr(torch.version, "git_version", None) or ""
print("dtdispatch-probe", json.dumps(found))
"""
PROBED, PROBED_FIELDS = "dtdispatch-probe ", ("python", "plugin", "torch", "build")
MOST_READ, MOST_SHOWN, MOST_BYTES = 64 * 1024, 200, 64 * 2**20
PLUGINS = ("-p", "pytest_dtdispatch.plugin.ab_process", "-p", "no:cacheprovider")
NO_TESTS, TESTS_FAILED = 5, 1


@dataclass(frozen=True)
class Arm:
    """One side, as ``base`` or ``python-2``: which interpreter runs its processes, and in which folder."""

    name: str
    python: str
    folder: Path
    import_path: tuple[Path, ...] = ()  # folders that it imports from first

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of its processes: ours, with a hash seed of its own and one thread.

        A fixed seed would hide what the seed does, and not take it away. What is measured is dispatch: a
        local op must not wait for a second thread.
        """
        made = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        made.setdefault("OMP_NUM_THREADS", "1")
        if self.import_path:
            after = [made["PYTHONPATH"]] if made.get("PYTHONPATH") else []
            made["PYTHONPATH"] = os.pathsep.join([*map(str, self.import_path), *after])
        return {**made, **extra}

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


@dataclass(frozen=True)
class PytestRun:
    """One run of pytest: what it answers with, and the flags for it."""

    kind: AnswerKind
    flags: tuple[str, ...]


def interpreter(side: str, typed: str) -> str:
    """Find the interpreter of a side: a path, or a command on the search path.

    The path is made absolute and no link is followed: a virtual environment is known by its link.
    """
    found, what = shutil.which(typed), "does not exist"
    if found is None:
        with contextlib.suppress(OSError, ValueError):  # it is too long for a path, or has a zero byte
            what = "is no program" if Path(typed).exists() else what
        remedy = "give the python of an environment"
        raise DtDispatchError(f"{side} {typed}: this interpreter {what}; {remedy}")
    return str(Path(found).absolute())


def probe(arm: Arm, workspace: Path) -> Versions:
    """Ask an interpreter which versions it has; refuse one that cannot measure."""
    log = workspace / f"{arm.name}-probe.log"
    try:
        status = run_to_end([arm.python, "-c", PROBE], arm.folder, arm.environment({}), log, PROBE_SECONDS)
    except OSError as error:
        raise DtDispatchError(f"{arm}: cannot be run: {error.strerror or error}") from None
    if status is None:
        raise DtDispatchError(f"{arm}: gave no answer in {PROBE_SECONDS:g} s")
    lines = last_lines(log)
    try:
        answer = "" if status else next(line for line in reversed(lines) if line.startswith(PROBED))
        found = json.loads(answer.removeprefix(PROBED))
        versions = Versions(cpu=cpu_model(), **{name: str(found[name]) for name in PROBED_FIELDS})
    except (StopIteration, ValueError, TypeError, KeyError):
        how = lines[-1][:MOST_SHOWN] if lines else f"exit status {status}, and not a word"
        raise DtDispatchError(f"{arm}: is no python that runs: {how}") from None
    ours = version("pytest-dtdispatch")
    remedy = f"pip install pytest-dtdispatch=={ours}"
    if not versions.plugin:
        raise DtDispatchError(f"{arm}: has no pytest-dtdispatch; install it there: {remedy}")
    if versions.plugin != ours:
        differ = (
            f"has pytest-dtdispatch {versions.plugin}, and this is {ours}: two versions measure differently"
        )
        raise DtDispatchError(f"{arm}: {differ}; {remedy}")
    if not versions.torch:
        raise DtDispatchError(f"{arm}: has no torch")
    return versions


@contextlib.contextmanager
def worktrees(revisions: Mapping[str, str], project: Path, workspace: Path) -> Iterator[dict[str, Path]]:
    """Check commits out, if there are any, and take the checkouts away again."""
    if not revisions:
        yield {}
        return
    top = Path(_git("--base-rev", project, "rev-parse", "--show-toplevel"))
    inside = project.resolve().relative_to(top.resolve())
    commits = {}
    for side, revision in revisions.items():
        verified = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        commits[side] = _git(f"--{side}-rev {revision}", project, *verified)
    made: list[Path] = []
    try:
        for side, commit in commits.items():
            made.append(workspace / side)
            _git(f"--{side}-rev", project, "worktree", "add", "--quiet", "--detach", str(made[-1]), commit)
            if not (made[-1] / inside).is_dir():
                raise DtDispatchError(f"--{side}-rev {revisions[side]}: it has no folder {inside}")
        yield {side: workspace / side / inside for side in commits}
    finally:
        with signals_held_back():
            for folder in made:
                _run_git(project, "worktree", "remove", "--force", str(folder))
            _run_git(project, "worktree", "prune")


def _git(what: str, project: Path, *words: str) -> str:
    done = _run_git(project, *words)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["git failed"]
        raise DtDispatchError(f"{what}: {lines[-1].removeprefix('fatal: ')} (git in {project})")
    return done.stdout.strip()


def _run_git(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(project), *words],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C is for us: git must finish what it began
        )
    except OSError as error:
        raise DtDispatchError(f"git cannot be run: {error.strerror}") from None


def run_pytest(
    arm: Arm,
    run: PytestRun,
    arguments: Sequence[str],
    passes: int,
    workspace: Path,
    time_limit_s: float,
    environment: Mapping[str, str],
) -> tuple[Answer, float]:
    """Measure in a process of a side; return its answer, and the seconds that it took."""
    log, output = workspace / f"{arm.name}.log", workspace / "answer.json"
    output.unlink(missing_ok=True)
    variables = {**environment, OUTPUT: str(output), PASSES: str(passes), KIND: str(run.kind)}
    command = [arm.python, "-m", "pytest", *PLUGINS, "--dtdispatch", *run.flags, *arguments]
    start = time.monotonic()
    try:
        status = run_to_end(command, arm.folder, arm.environment(variables), log, time_limit_s)
    except OSError as error:
        raise ProcessError(f"{arm}: cannot be run: {error.strerror or error}") from None
    seconds = time.monotonic() - start
    if status is None:
        raise ProcessError(
            f"{arm}: not over after {time_limit_s:g} s, and was ended: --time-limit; log: {log}"
        )
    if status or not output.exists():
        raise ProcessError(f"{arm}: {_failure(status, last_lines(log))}; log: {log}")
    try:
        text = read_text(output, MOST_BYTES, f"more than {MOST_BYTES:,} bytes")
        return checked_answer(decode(Answer, json.loads(text))), seconds
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise ProcessError(f"{arm}: wrote something else than its rows: {error}; log: {log}") from None


def checked_answer(answer: Answer) -> Answer:
    """Check that an answer has figures that some process can have; else raise a ValueError."""
    for row in answer.rows.values():
        figures = (*row.medians_ns, row.quietest_ns)
        if not row.medians_ns or not all(0 < ns < math.inf for ns in figures) or row.samples < 1:
            raise ValueError(f"latencies of {figures} ns, {row.samples} samples")
    for name, number in answer.numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{name}: {number}")
    return answer


def _failure(status: int, lines: Sequence[str]) -> str:
    """Say why a process has no answer: by its status, and by what it said last."""
    last = next((line for line in reversed(lines) if not line.startswith("=")), "")[:MOST_SHOWN]
    if status < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"died of {names.get(-status, f'signal {-status}')}"
    if status == NO_TESTS:
        return "no test was collected"
    if status == TESTS_FAILED:
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return f"tests failed: {failed[0][:MOST_SHOWN] if failed else last}"
    if status:
        errors = [line for line in lines if line.startswith(("ERROR: ", "E   "))]
        return f"exit status {status}: {errors[0][:MOST_SHOWN] if errors else last}"
    return f"measured nothing, and said last: {last}"


def last_lines(log: Path) -> list[str]:
    """Read the last lines of a log that say something."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_READ))
        text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, time_limit_s: float
) -> int | None:
    """Run a process in a group of its own, and end the whole group when it is over, however it ended.

    Nothing is polled: this process sleeps until the other one ends, and takes no time from it.

    Returns:
        Its exit status, below 0 the signal that ended it; None where it was ended at its time limit.
    """
    late = threading.Event()
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as out:
        try:
            with signals_held_back():  # no interrupt between the start of a process and our knowing of it
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            timer = threading.Timer(time_limit_s, _end_late, (process, late))
            timer.start()
            try:
                status = process.wait()
            finally:
                timer.cancel()
        finally:
            if process is not None:
                with signals_held_back():
                    _end_group(process)
                    process.wait()
    return None if late.is_set() else status


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold back Ctrl-C and its like while a block runs; one that came is obeyed at the end of the block."""
    came: list[int] = []
    with _handled_by(lambda number, frame: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


def stopped_by_signals() -> contextlib.AbstractContextManager[None]:
    """Let whoever ends this process, or closes its terminal, do as Ctrl-C does."""
    return _handled_by(signal.default_int_handler)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no other may handle signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, theirs)


def _end_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    if process.poll() is None:
        late.set()
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is empty: all have ended
        os.killpg(process.pid, signal.SIGKILL)
