"""Rerun of this process's command line in ranks, or under a counter of instructions."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import read_world
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.plugin import ranks, resolve
from pytest_dtdispatch.plugin.pytest_internals import root_and_ini
from pytest_dtdispatch.plugin.ranks import rank_of
from pytest_dtdispatch.plugin.settings import WITH_FLAG

if TYPE_CHECKING:
    from pytest_dtdispatch.rounds.sampler import Meter, Profiler

FOLDER = "DTDISPATCH_INSTRUCTIONS"  # environment variable of the counting process: a folder
HARDWARE_PROBE = "pytest_dtdispatch.instructions.meters"
METER = pytest.StashKey[str]()  # text: the counter of instructions
METER_FILE = "meter.txt"  # in FOLDER: the text of METER


def refuse_questions(config: pytest.Config, because: str) -> None:
    """Reject flags that would prompt at the terminal, which other processes do not have."""
    for dest, flag in (("usepdb", "--pdb"), ("trace", "--trace")):
        if config.getoption(dest, False):
            raise pytest.UsageError(f"{flag} does not work with {because}: drop one of them")


def _refuse_moved_rootdir(config: pytest.Config) -> None:
    """Reject a value of our flags that changed the rootdir, and so the ini file and the names of rows.

    Pytest determines both before our flags are declared, and treats FILE of ``--flag FILE`` as a path of
    tests.
    """
    args = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
    flags = {setting.flag for setting in WITH_FLAG if setting.metavar}
    apart = [(flag, value) for flag, value in pairwise(args) if flag in flags and Path(value).exists()]
    if apart and (config.rootpath, config.inipath) != root_and_ini(config):
        flag, value = apart[0]
        raise pytest.UsageError(f"{flag} {value} would move pytest's rootdir: write {flag}={value}")


def same_command(config: pytest.Config) -> list[str]:
    """Return the command line of this process, or an equivalent one if it is not that of pytest."""
    started = Path(sys.argv[0])
    if started.name in ("pytest", "py.test") or started.parent.name == "pytest":
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)]


def uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """Suspend output capturing while other processes print."""
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    return manager.global_and_fixture_disabled() if manager else nullcontext()


def run_elsewhere(config: pytest.Config) -> int | None:
    """Join other ranks, or run the command line again in ranks or under a counter of instructions."""
    _refuse_moved_rootdir(config)
    rank, settings = rank_of(config), resolve.valid_settings(config)
    if settings is not None and not settings.measure:
        settings = None
    # Workers of pytest-xdist would run the tests instead of the ranks.
    workers, runs_nothing = config.getoption("numprocesses", None), resolve.runs_nothing(config.option)
    is_launched = settings is not None and settings.nproc > 1
    if workers and (is_launched or rank) and not runs_nothing:
        flag = "--dtdispatch-nproc" if is_launched else "torchrun"
        raise pytest.UsageError(f"-n {workers} (pytest-xdist) does not work with {flag}: add -n 0")
    status = None if rank is None else rank.join(config)
    if status is not None:
        return status
    if runs_nothing or resolve.reason_not_measured(config):
        settings = None
    if settings and settings.nproc > 1 and not read_world(os.environ).is_many:
        return _launch(config, settings.nproc)
    from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
    from pytest_dtdispatch.instructions.meters import command
    from pytest_dtdispatch.rounds.sampler import register_sampler

    folder = os.environ.pop(FOLDER, "")
    if folder:  # this process runs under a counter
        config.stash[METER] = Path(folder, METER_FILE).read_text(encoding="utf-8")
        profile = settings is not None and settings.profile
        register_sampler(InstructionSampler(partial(_meter, config, Path(folder), profile)))
        return None
    if settings is None or settings.metric != "instructions":
        return None
    refuse_questions(config, "--dtdispatch-metric instructions")
    no_names = "a profile needs the names of functions, which the hardware counter does not report"
    valgrind, meter = choose(no_names if settings.profile else why_no_hardware_counter())
    with tempfile.TemporaryDirectory(prefix="dtdispatch-") as folder, uncaptured(config):
        Path(folder, METER_FILE).write_text(f"instructions are counted by {meter}", encoding="utf-8")
        prefix = command(valgrind, Path(folder)) if valgrind else []
        return _run([*prefix, *same_command(config)], Path(folder))


def choose(why_no_hardware: str) -> tuple[str, str]:
    """Choose the counter: return valgrind's path, empty for the hardware counter, and a description."""
    if not why_no_hardware:
        return "", "the hardware counter (callgrind is not needed)"
    path, reason = find_callgrind()
    if reason:
        reasons = f"{why_no_hardware}; {reason}"
        raise pytest.UsageError(f"--dtdispatch-metric instructions: no counter is available here: {reasons}")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return path, f"callgrind ({version}; {why_no_hardware})"


def why_no_hardware_counter() -> str:
    """Return why the hardware counter is not usable; empty if it counts two loops correctly."""
    command, longest_s = [sys.executable, "-m", HARDWARE_PROBE], 120
    try:
        probe = subprocess.run(command, capture_output=True, text=True, check=False, timeout=longest_s)
    except subprocess.TimeoutExpired:
        return f"the probe of the hardware counter did not end within {longest_s} s"
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or [f"exit status {probe.returncode}"])[-1]
        return f"the probe of the hardware counter failed: {last}"
    return probe.stdout.strip()


def find_callgrind() -> tuple[str, str]:
    """Return the path of valgrind, and why it is not usable; empty if it is."""
    from pytest_dtdispatch.instructions.meters import why_no_requests

    path = shutil.which("valgrind") or ""
    no_path = "valgrind is not on PATH: install valgrind (apt install valgrind, dnf install valgrind)"
    return path, why_no_requests() or ("" if path else no_path)


def _meter(config: pytest.Config, folder: Path, profile: bool) -> tuple[Meter, Profiler | None]:
    from pytest_dtdispatch.instructions.meters import LOG, Callgrind, CallProfiler, hardware_meter

    if not (folder / LOG).exists():
        return hardware_meter(), None
    callgrind = Callgrind(folder)
    config.add_cleanup(callgrind.stop)  # the shutdown of Python and of torch's libraries is not counted
    return callgrind.meter, CallProfiler(callgrind) if profile else None


def _run(command: list[str], folder: Path) -> int:
    """Run the counting process reproducibly: cached byte code, fixed hashes, one thread."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**variables, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", FOLDER: str(folder)}
    with subprocess.Popen(command, env=environment) as process:
        while (status := process.poll()) is None:
            with suppress(KeyboardInterrupt):  # the other process also receives it, and ends the run
                process.wait()
    if status < 0:
        print(f"ERROR: the run under {command[0]} ended by signal {-status}", file=sys.stderr)
        return int(pytest.ExitCode.INTERNAL_ERROR)
    return status


def _launch(config: pytest.Config, number: int) -> int:
    """Run the command line in ranks, and wait for them."""
    refuse_questions(config, "--dtdispatch-nproc")
    from pytest_dtdispatch.ranks.launch import launch

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtdispatch-ranks-"))
        stack.enter_context(uncaptured(config))
        pipe = Path(folder, ranks.LAUNCHER)
        os.mkfifo(pipe)
        stack.callback(os.close, os.open(pipe, os.O_RDWR))  # ranks end when it is closed
        try:
            command = same_command(config)
            coverage: Any = sys.modules.get("coverage")
            running = coverage and coverage.Coverage.current()
            covered = str(Path(running.get_option("run:data_file")).absolute()) if running else ""
            if covered:
                # Coverage starts before this plugin, and each rank would overwrite the file of the others.
                command = ["/bin/sh", "-c", 'COVERAGE_FILE="$0.rank$RANK" exec "$@"', covered, *command]
            ends = launch(number, command, {ranks.FOLDER: folder}, folder)
            if covered:
                remedy = "run coverage combine, then report"
                print(f"dtdispatch: coverage of rank N is in {covered}.rankN: {remedy}")
            path = Path(folder, ranks.STATUS)
            if path.exists():  # the first rank ended regularly
                status = int(path.read_text())
                late = [end for end in ends if end.status != status and not end.is_terminated]
                for end in late:
                    print(f"dtdispatch: {end} after its last test; its results count", file=sys.stderr)
                return status
            lines = ["the ranks ended without a result"]
            if ends:
                at, printed = (Path(folder, f"{kind}-{ends[0].rank}") for kind in (ranks.AT, ranks.PRINTED))
                test = f" in {at.read_text(encoding='utf-8')}" if at.exists() else ""
                tail = printed.read_text(errors="replace").strip()[-ranks.TAIL :] if printed.exists() else ""
                lines = [f"{ends[0]}{test}", *([f"the end of its output:\n{tail}"] if tail else ())]
        except RanksError as stopped:
            lines = [str(stopped)]
        # Begin a new line, as the first rank may have printed an incomplete one.
        print("", *(f"ERROR: {line}" for line in lines), sep="\n", file=sys.stderr)
    return int(pytest.ExitCode.TESTS_FAILED)
