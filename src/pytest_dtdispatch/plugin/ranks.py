"""A run of many ranks: processes synchronize, save their output, and end tests and the run together."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import World, ranks_text, read_world
from pytest_dtdispatch.core.parsing import ON
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.core.trail import Trail, collective_difference, shape_difference
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.plugin import guard, resolve
from pytest_dtdispatch.plugin.pytest_internals import ini_value
from pytest_dtdispatch.ranks.merge import (
    FAILED,
    PhaseOutcome,
    collected_difference,
    complaints,
    merge_records,
    rows_trail,
)
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.ranks.exchange import Exchange, Lockstep

PLUGIN = "dtdispatch-rank"
FOLDER = "DTDISPATCH_RANKS"  # environment variable of launched ranks: a folder for their state
# Files in it: the exit status of the run, the test of each rank, the output of each rank but the first.
STATUS, AT, PRINTED = "status", "at", "printed"
LAUNCHER = "launcher"  # also in it: a pipe that the launcher keeps open while it runs
# Keys at the end: exit status of the first rank, and its receipt by other ranks.
EXIT_STATUS_KEY, ACKNOWLEDGED_KEY = "done", "bye"
WRITES = (  # flags of other plugins that write or compare files
    *("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_save_data"),
    *("benchmark_compare", "benchmark_compare_fail", "benchmark_histogram", "benchmark_cprofile_dump"),
    *("xmlpath", "log_file", "report_log"),
)
STACK_SIGNAL = signal.SIGUSR1  # torch uses SIGUSR2 for its own stacks
LONGEST_REASON, TAIL = 300, 4000  # characters of a one-line reason, and of a failure or a rank's output
_NUMBER = pytest.StashKey[int]()


def join_run(config: pytest.Config) -> None:
    """Register the rank of this process if it belongs to a measuring run of many ranks."""
    world, flags = read_world(os.environ), config.known_args_namespace
    switches = ("dtdispatch", "dtdispatch_all")
    values = [getattr(flags, name, None) or str(ini_value(config, name)).lower() for name in switches]
    measures = any(value is True or value in ON for value in values)
    if world.is_many and measures and not resolve.runs_nothing(flags):
        guard.register(config, Rank(world), PLUGIN)


def rank_of(config: pytest.Config) -> Rank | None:
    """Return the rank object of this process; None outside a measuring run of many ranks."""
    rank: Rank | None = config.pluginmanager.get_plugin(PLUGIN)
    return rank


def count_test(config: pytest.Config) -> None:
    """Increment the number of the current test run, which is equal on all ranks."""
    config.stash[_NUMBER] = test_number(config) + 1


def test_number(config: pytest.Config) -> int:
    """Return the number of the current test."""
    return config.stash.get(_NUMBER, 0)


class Rank:
    """Plugin object of one of many ranks, which synchronizes tests with the other ranks."""

    exchange: Exchange  # set by join()
    _settings: Settings

    def __init__(self, world: World) -> None:
        self.world = world
        self.has_rendezvoused = False
        self.why_stopped = ""  # reason why the run stopped early
        self._folder = os.environ.get(FOLDER, "")
        if self._folder:
            threading.Thread(target=_end_with_launcher, args=(Path(self._folder),), daemon=True).start()
        if not world.is_first:  # standard output goes to a file; standard error is not redirected
            path = Path(self._folder, f"{PRINTED}-{world.rank}")
            sys.stdout.flush()
            with path.open("w+b") if self._folder else tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), 1)
        faulthandler.register(STACK_SIGNAL, os.dup(2), all_threads=False)
        self._runs = False  # whether the current test was set up on all ranks
        self._collect_errors: dict[str, str] = {}
        self._processes: dict[int, tuple[str, int]] = {}  # host and process id by rank
        self._complaints: list[str] = []
        self._differ: dict[tuple[RowId, str], str] = {}
        self._lockstep: Lockstep | None = None

    def join(self, config: pytest.Config) -> int | None:
        """Open the exchange with the other ranks; return an exit status if that fails."""
        for dest in () if self.world.is_first else WRITES:
            if getattr(config.option, dest, None):
                setattr(config.option, dest, None)
        from pytest_dtdispatch.ranks.exchange import join
        from pytest_dtdispatch.torchapi.groups import print_stacks_on_fatal_signals

        print_stacks_on_fatal_signals()
        settings = resolve.valid_settings(config)
        if settings is None:
            return None
        try:
            self.exchange, self._settings = join(self.world, settings.timeout), settings
            self.has_rendezvoused = True
            # pytest-randomly seeds each rank differently: use one seed, so that all shuffle tests equally.
            if getattr(config.option, "randomly_seed", None) == "default":
                self.exchange.put("order", random.Random().getrandbits(32))
                [seed] = self.exchange.gather("order", "choose an order of tests", among=[0]).values()
                config.option.randomly_seed = seed
        except RanksError as error:
            print(f"ERROR: {error}", file=sys.stderr, flush=True)
            return int(pytest.ExitCode.TESTS_FAILED)
        return None

    # The end of the run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """End the run together: the first rank last, with the exit status of the run."""
        try:
            status = int((yield) or 0)
        except pytest.UsageError as error:
            # After join(), the first rank reports it, with the output of ranks that ended differently.
            is_reported = self.has_rendezvoused and not self.world.is_first
            print(f"ERROR: {error}", file=sys.stdout if is_reported else sys.stderr)
            status = int(pytest.ExitCode.USAGE_ERROR)
        problems = guard.problems(config)
        if not self.world.is_first:  # the first rank has printed its own, and reports these
            sys.stdout.writelines(f"ERROR: {problem}\n" for problem in problems)
        status = status or int(bool(problems))
        if not self.has_rendezvoused:
            return status
        sys.stdout.flush()
        return self._end_first(status) if self.world.is_first else self._end_other(status)

    def outlive_others(self) -> None:
        """Finish the run even if the launcher ends it because another rank died after its last test."""
        if not (self.world.is_first and self._folder and not self.why_stopped):
            return

        def record(*_: object) -> None:
            ended = "ended after its last test"
            self.exchange.lost |= {rank: f"rank {rank} {ended}" for rank in range(1, self.world.size)}

        signal.signal(signal.SIGTERM, record)

    def _end_first(self, status: int) -> int:
        """Report failures of the other ranks, and let them exit with the status of the run."""
        exchange, others = self.exchange, range(1, self.world.size)
        try:
            exchange.put(exchange.LEFT, [status, ""])
            problems = []
            try:
                exchange.gather(exchange.LEFT, "end its run", among=others, unless=())
            except RanksError as error:
                problems.append(str(error))
            ended = exchange.gather(exchange.LEFT, "end its run", among=others, unless=())
            problems += [
                f"rank {rank} ended with exit status {theirs}; the end of its output:\n{printed}"
                for rank, (theirs, printed) in ended.items()
                if theirs not in (0, status)
            ]
            for problem in problems:
                print(f"ERROR: {problem}", file=sys.stderr)
                status = status or int(pytest.ExitCode.TESTS_FAILED)
            if self._folder:
                Path(self._folder, STATUS).write_text(str(status))
            exchange.put(EXIT_STATUS_KEY, status)
            # The store may be in this process: keep it until all ranks have read from it, for milliseconds.
            exchange.gather(ACKNOWLEDGED_KEY, "read how the run ended", 10.0, others, unless=())
        except RanksError as error:
            if not status:
                print(f"ERROR: {error}", file=sys.stderr)
            return status or int(pytest.ExitCode.TESTS_FAILED)
        return status

    def _end_other(self, status: int) -> int:
        """Wait until the first rank has printed and written everything; it reports failures of this rank."""
        exchange = self.exchange
        printed = os.pread(1, TAIL, max(os.fstat(1).st_size - TAIL, 0))
        try:
            exchange.put(exchange.LEFT, [status, printed.decode(errors="replace").strip()])
            if 0 in exchange.lost:
                raise RanksError(exchange.lost[0])
            timeout_s = 2 * exchange.timeout_s
            ends = exchange.gather(EXIT_STATUS_KEY, "end the run", timeout_s, among=[0], unless=())
            exchange.put(ACKNOWLEDGED_KEY, None)
        except RanksError as error:
            if all(rank in exchange.lost for rank in range(self.world.rank)):  # or one of them reports it
                print(f"ERROR: rank {self.world.rank} could not continue: {error}", file=sys.stderr)
            return status or int(pytest.ExitCode.TESTS_FAILED)
        # One nonzero status per machine: a launcher stops its other ranks as soon as one exits with it.
        return int(ends[0]) if self.world.local_rank == 0 else 0

    # Collecting

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record collection errors of this rank."""
        if report.failed:
            self._collect_errors[report.nodeid] = reason_of(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Compare the collected tests of all ranks before any of them runs a test."""
        try:
            why = self._compare([item.nodeid for item in session.items])
        except RanksError as error:
            why = str(error)
        if why:
            self._stop(session, why)
            raise session.Failed(why)

    def _compare(self, tests: list[str]) -> str:
        """Describe the difference between the collected tests of ranks; return an empty string if equal."""
        here = (socket.gethostname(), os.getpid())
        self.exchange.put("collected", [tests, self._collect_errors, here])
        found = self.exchange.gather("collected", "collect its tests")
        self._processes = {rank: process for rank, (_, _, process) in found.items()}
        if any(errors != self._collect_errors for _, errors, _ in found.values()):
            who = grouped(
                (f"could not collect {module}: {why}", rank)
                for rank, (_, errors, _) in found.items()
                for module, why in errors.items()
            )
            return "; ".join(f"rank {', '.join(map(str, ranks))} {error}" for error, ranks in who.items())
        for rank, (collected, _, _) in found.items():
            how = collected_difference(found[0][0], collected)
            if how:
                return f"ranks collected different tests: rank {rank} {how}"
        return ""

    # Tests

    # Without tryfirst, because the test must be counted before.
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Record the current test of this rank, for the launcher too."""
        self._runs, self._lockstep = True, None
        self.exchange.end_of_part = _end_of("setup", item.config)
        if self._folder:
            Path(self._folder, f"{AT}-{self.world.rank}").write_text(item.nodeid, encoding="utf-8")

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all hooks that change a report
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """End each phase of a test on all ranks together: it fails on all if it fails on any."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, RanksError):
            report.longrepr = str(call.excinfo.value)  # without frames of torch and this plugin
        if not self.why_stopped:
            try:
                self._end_phase(item, report, call.duration)
            except RanksError as error:
                self._stop(item.session, str(error))
                guard.fail_report(report, [str(error)], "all ranks")
        return report

    def _end_phase(self, item: pytest.Item, report: pytest.TestReport, duration: float) -> None:
        part = str(report.when)
        if hasattr(report, "wasxfail"):
            label = "xfailed" if report.skipped else "xpassed"
            ours = PhaseOutcome(label, str(report.wasxfail)[:LONGEST_REASON])
        else:
            sections = [f"--- {name}\n{text}" for name, text in report.sections]
            details = "\n".join([report.longreprtext, *sections]).strip()
            why = "" if report.passed else reason_of(report)
            ours = PhaseOutcome(report.outcome, why, details[-TAIL:] if report.failed else "")
        key, trail = _end_of(part, item.config), _trail_of(item.config)
        if self._lockstep and part == "call":
            self.exchange.put(trail, encode(self._lockstep.trail))
        self.exchange.put(key, ours)
        following = {"setup": "call", "call": "teardown", "teardown": ""}[part]
        self.exchange.end_of_part = _end_of(following, item.config)
        # A failed phase may already have waited for the other ranks.
        waited = min(duration, self._settings.timeout) if ours.label == FAILED else 0.0
        found = self._gather(key, f"end the {part} of {item.nodeid}", waited)
        outcomes = {rank: PhaseOutcome(*theirs) for rank, theirs in found.items()}
        labels = {outcome.label for outcome in outcomes.values()}
        if part == "setup":
            self._runs = labels == {"passed"}
        if FAILED in labels or len(labels) > 1:
            lines = complaints(outcomes)
            trails = self._trails(trail, found) if part == "call" and FAILED in labels else {}
            lines += filter(None, [collective_difference(trails)])
            self._complaints += [f"{item.nodeid} ({part}): {line}" for line in lines]
            guard.fail_report(report, lines, "all ranks")
        for rank, outcome in outcomes.items():
            if outcome.details not in ("", outcome.why) and rank != self.world.rank:
                report.sections.append((f"failure on rank {rank}", outcome.details))
        if self.exchange.lost:
            self._stop(item.session, "; ".join(dict.fromkeys(self.exchange.lost.values())))

    def _trails(self, key: str, ranks: Collection[int]) -> dict[int, Trail]:
        """Return the trails that ranks have written at the end of their calls."""
        return _decoded(Trail, self.exchange.written(key, ranks), "a trail")

    def _gather(self, key: str, label: str, waited: float = 0.0) -> dict[int, Any]:
        timeout = self._settings.timeout
        grace = max(timeout / 4, 1.0)  # for ranks that began to wait later
        return self.exchange.gather(key, label, timeout - waited + grace)

    def _stop(self, session: pytest.Session, why: str) -> None:
        self.why_stopped = session.shouldfail = why
        bridge = session.config.pluginmanager.get_plugin("dtdispatch-bridge")
        if bridge:
            bridge.keep_files()
        for rank in self.exchange.lost if self.world.is_first else ():
            host, process = self._processes.get(rank, ("", 0))
            if host == socket.gethostname():
                with suppress(OSError):  # the process has ended
                    os.kill(process, STACK_SIGNAL)
                    time.sleep(0.3)  # while it prints its stack

    # Results

    def agreement(self, config: pytest.Config) -> Lockstep | None:
        """Return the agreement of ranks for the current test."""
        from pytest_dtdispatch.ranks.exchange import Lockstep
        from pytest_dtdispatch.torchapi.groups import has_real_group

        if not self.why_stopped:
            self._lockstep = Lockstep(self.exchange, str(test_number(config)), has_real_group)
        return self._lockstep

    def merged(self, record: TestRecord, config: pytest.Config) -> TestRecord:
        """Send the record of the current test to the first rank; there, return the merged record."""
        if self.why_stopped or not self._runs:
            return record
        key = f"rows/{test_number(config)}"
        numbers = tuple(record.numbers())
        ours = TestRecord(record.test, record.rows(), merged_numbers=numbers, verdicts=record.verdicts)
        self.exchange.put(key, encode(ours))
        if not self.world.is_first:
            return record
        found = self._gather(key, "send its rows")
        others = {rank: theirs for rank, theirs in found.items() if rank}
        records = {0: record, **_decoded(TestRecord, others, "rows")}
        merged = merge_records(records, self._settings.rank_stat)
        trails = self._trails(_trail_of(config), records)
        called = {rank: trails.get(rank, Trail()) + rows_trail(one) for rank, one in records.items()}
        differ = shape_difference(called)
        if differ:
            self._differ[RowId(record.test, ""), ""] = f"{record.test}: {differ}"
        for one in merged.merged_numbers or ():
            if one.ranks:
                which = f"{name_in_files(one.row)}: {one.metric} is {one.value:,} on {ranks_text(one.ranks)}"
                self._differ[one.row, one.metric] = f"{which}, and fewer or none elsewhere"
        return merged

    @property
    def summary(self) -> str:
        """One line with the numbers of ranks and machines."""
        machines = len({host for host, _ in self._processes.values()})
        return f"{self.world.size} ranks on {f'{machines} machines' if machines > 1 else '1 machine'}"

    def document(self) -> Document:
        """Render failures of ranks, and numbers that differ between ranks."""
        failed = [*self._complaints, *filter(None, [self.why_stopped])]
        failures = [one_line(Span(f"failed: {text}", Tone.BAD)) for text in failed]
        notices = [one_line(Span(text, Tone.NOTICE)) for text in self._differ.values()]
        return Document((*failures, *notices))


def _end_with_launcher(folder: Path) -> None:
    """Wait until the launcher ends, which closes its pipe; then remove its folder and kill this process.

    If the launcher is killed, ranks would wait for their timeout. This thread sleeps in one system call until
    then, and also runs while the main thread waits in a collective, where no Python signal handler does.
    """
    with suppress(OSError):  # another rank has removed the folder
        pipe = os.open(folder / LAUNCHER, os.O_RDONLY | os.O_NONBLOCK)  # the launcher may have ended already
        os.set_blocking(pipe, True)
        os.read(pipe, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _decoded(kind: Any, found: Mapping[int, Any], title: str) -> dict[int, Any]:
    """Decode the value of each rank."""
    try:
        return {rank: decode(kind, plain) for rank, plain in found.items()}
    except (ValueError, TypeError) as error:
        raise RanksError(f"a rank sent something other than {title}: {error}") from None


def _end_of(part: str, config: pytest.Config) -> str:
    return f"test/{test_number(config)}/{part}"


def _trail_of(config: pytest.Config) -> str:
    return f"trail/{test_number(config)}"


def reason_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return why a test or a file failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")[:LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines() or [report.outcome]
    # The reason is the last line for a file, the first for an exception.
    return lines[0 if crash else -1].removeprefix("E ").strip()[:LONGEST_REASON]
