"""A run of many ranks: a process meets the others, keeps what it prints, and ends tests and run with them."""

from __future__ import annotations

import atexit
import faulthandler
import hashlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import ENDED_ITS_RUN, World, group_ranks, lost_text, ranks_text
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.ranks import merge
from pytest_dtdispatch.ranks.merge import FAILED, SKIPPED, PhaseOutcome
from pytest_dtdispatch.report.document import Document, Span, Tone, Verbatim, one_line

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.ranks.exchange import Exchange, Lockstep

PLUGIN = "dtdispatch-rank"
FOLDER = "DTDISPATCH_RANKS"  # set for ranks that we start: where each says what it does
STATUS, AT = "status", "at"  # files there: the exit status of the run, and the test of each rank
WRITES = (  # flags of other plugins that write files, or judge by files
    *("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_save_data"),
    *("benchmark_compare", "benchmark_compare_fail", "benchmark_histogram", "benchmark_cprofile_dump"),
    *("xmlpath", "log_file", "report_log"),
)
STACK_SIGNAL = signal.SIGUSR2
FAREWELL_S = 10.0  # for what takes milliseconds
TAIL = 4000  # characters of a rank's output that are shown
_NUMBER = pytest.StashKey[int]()


def rank_of(config: pytest.Config) -> Rank | None:
    """Return what this process is among many ranks, if it is one of a run that measures."""
    rank: Rank | None = config.pluginmanager.get_plugin(PLUGIN)
    return rank


def count_test(config: pytest.Config) -> None:
    """Count a test that is set up: each run of one has a number, the same on every rank."""
    config.stash[_NUMBER] = test_number(config) + 1


def test_number(config: pytest.Config) -> int:
    """Return the number of the test at hand."""
    return config.stash.get(_NUMBER, 0)


def _take_one_order(config: pytest.Config, exchange: Exchange) -> None:
    """Let all ranks shuffle tests alike, where pytest-randomly gave each of them a seed of its own."""
    if getattr(config.option, "randomly_seed", None) == "default":
        exchange.put("order", random.Random().getrandbits(32))
        config.option.randomly_seed = exchange.gather("order", "choose an order of tests", among=[0])[0]


class Rank:
    """The plugin object of a process that is one of many ranks."""

    def __init__(self, world: World, log: Log | None) -> None:
        self.world = world
        self.log = log
        self.exchange: Exchange | None = None  # once ranks have met
        self._others = range(1, world.size)
        self._why_ended = ""
        self._folder = os.environ.get(FOLDER, "")

    def join(self, config: pytest.Config) -> int | None:
        """Meet the other ranks; return an exit status where they cannot be met."""
        if self.log is not None:
            for dest in WRITES:
                if getattr(config.option, dest, None):
                    setattr(config.option, dest, None)
        from pytest_dtdispatch.ranks.exchange import join

        try:
            if (settings := resolve.valid_settings(config)) is not None:
                self.exchange = join(self.world, settings.timeout)
                _take_one_order(config, self.exchange)
        except RanksError as error:
            print(f"ERROR: {error}", file=sys.stderr, flush=True)
            return int(pytest.ExitCode.TESTS_FAILED)
        return None

    def note(self, test: str) -> None:
        """Note for the launcher which test this rank comes to."""
        if self._folder:
            Path(self._folder, f"{AT}-{self.world.rank}").write_text(test, encoding="utf-8")

    def introduction(self) -> dict[str, Any]:
        """Say where this rank runs, and where its output is."""
        log = self.log
        pid = os.getpid() if log and log.shows_stack else 0
        return {"host": socket.gethostname(), "log": log.path if log else "", "pid": pid}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self) -> Generator[None, Any, Any]:
        """End the run together: the first rank last of all, with the exit status of the run."""
        try:
            status = int((yield) or 0)
        except pytest.UsageError as error:
            if self.world.is_first:
                self._end_first(int(pytest.ExitCode.USAGE_ERROR))
                raise
            print(f"ERROR: {error}", file=sys.stderr)
            status = int(pytest.ExitCode.USAGE_ERROR)
        return self._end_first(status) if self.world.is_first else self._end_other(status)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what ended the run before its end."""
        self._why_ended = f" ({excinfo.exconly(tryshort=True).splitlines()[0]})"

    def _end_first(self, status: int) -> int:
        exchange = self.exchange
        if exchange is None:
            return status
        try:
            exchange.leave(f"exit status {status}{self._why_ended}")
            problems = self._ends_of_others(exchange, status)
        except RanksError as error:
            problems = [] if status else [str(error)]
        for problem in problems:
            print(f"ERROR: {problem}", file=sys.stderr)
        if problems and not status:
            status = int(pytest.ExitCode.TESTS_FAILED)
        _flush()
        if self._folder:
            Path(self._folder, STATUS).write_text(str(status))
        try:
            exchange.put("done", status)
            # The store may be this process's own: it stays until all have read from it.
            exchange.gather("bye", "read how the run ended", FAREWELL_S, self._others, farewell="")
        except RanksError:
            return status or int(pytest.ExitCode.TESTS_FAILED)
        return status

    def _ends_of_others(self, exchange: Exchange, status: int) -> list[str]:
        from pytest_dtdispatch.ranks.exchange import LostRanksError

        problems = []
        try:
            ends = exchange.gather("end", "end its run", among=self._others, farewell="")
        except LostRanksError as error:
            ends, problems = error.found, [str(error)]
        for rank, (theirs, tail) in sorted(ends.items()):
            if theirs not in (0, status):
                problems.append(f"rank {rank} ended with exit status {theirs}:\n{tail}")
        return problems

    def _end_other(self, status: int) -> int:
        """Wait until the first rank has printed and written all; it tells what went wrong here."""
        exchange, log = self.exchange, self.log
        if exchange is None or log is None:
            return status
        _flush()
        try:
            exchange.put("end", [status, tail_of(log.path)])
            exchange.leave(f"exit status {status}{self._why_ended}")
            done = exchange.gather("done", "end the run", 2 * exchange.timeout_s, among=[0], farewell="")
            exchange.put("bye", None)
        except RanksError:
            done = {}
        if 0 not in done:  # only a rank before this one can tell it
            log.is_told = any(rank not in exchange.lost for rank in range(self.world.rank))
            return status or int(pytest.ExitCode.TESTS_FAILED)
        log.is_told = True
        # One status a machine: a launcher ends its other ranks as soon as one ends with another than 0.
        return int(done[0]) if self.world.local_rank == 0 else 0


class Log:
    """Keeps in a file what this process prints; shows it at the end, if nobody else told what it says."""

    def __init__(self, rank: int) -> None:
        file, self.path = tempfile.mkstemp(
            prefix=f"dtdispatch-rank-{rank}-", suffix=".log", dir=os.environ.get(FOLDER)
        )
        self.is_told = False
        self._rank = rank
        self._terminal = os.dup(2)
        # Whether a signal makes this process write to the file where it is.
        self.shows_stack = signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL
        _flush()
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        if self.shows_stack:
            faulthandler.register(STACK_SIGNAL, os.fdopen(os.dup(2), "w"))
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        _flush()
        if not self.is_told:
            said = tail_of(self.path)
            text = f"ERROR: rank {self._rank} could not go on; the end of its output:\n{said}\n"
            os.write(self._terminal, text.encode())
        Path(self.path).unlink(missing_ok=True)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def tail_of(path: str | Path, characters: int = TAIL) -> str:
    """Return the end of a file; empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()[-characters:]
    except OSError:
        return ""


TESTS_PLUGIN = "dtdispatch-ranks"
LONGEST = 300  # characters of a reason
REMEMBER = ("lfplugin", "nfplugin")  # of pytest, which write its cache
NEXT = {"setup": "call", "call": "teardown", "teardown": ""}  # parts of a test
WRITES_STACK_S = 0.3
STACK_TITLE, MOST_CALLS, MOST_LINES, LONGEST_LOG = "most recent call first", 6, 40, 20_000
GRACE = 0.25  # of the timeout: for ranks whose own wait began later


class RankSession:
    """The plugin object that keeps the tests of all ranks together."""

    def __init__(self, config: pytest.Config, settings: Settings, rank: Rank, exchange: Exchange) -> None:
        self.why_stopped = ""  # the run was ended before its end, because of this
        self._config = config
        self._settings = settings
        self._rank = rank
        self._exchange = exchange
        self._runs = False  # whether the test at hand was set up on every rank
        self._collect_errors: dict[str, str] = {}
        self._introductions: dict[int, dict[str, Any]] = {}
        self._complaints: list[str] = []
        self._differ: dict[tuple[str, str], str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what this rank cannot collect."""
        if report.failed:
            self._collect_errors[report.nodeid] = _last_line(str(report.longrepr))

    def pytest_collection_finish(self) -> None:
        """Let the first rank alone remember what failed."""
        if not self._rank.world.is_first:
            for name in REMEMBER:
                if plugin := self._config.pluginmanager.get_plugin(name):
                    self._config.pluginmanager.unregister(plugin)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Compare what ranks collected, before any of them runs a test."""
        try:
            why = self._compare([item.nodeid for item in session.items])
        except RanksError as error:
            why = str(error)
        if why:
            self._stop(session, why)
            raise session.Failed(why)

    # Not first: the test is counted before.
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which test this rank comes to."""
        self._runs = True
        self._exchange.end_of_part = self._end_of("setup")
        self._rank.note(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all that changes a report
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """End each phase of a test together: it fails where it fails on any rank."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, RanksError):
            report.longrepr = str(call.excinfo.value)  # no frame of torch or of ours tells more
        if not self.why_stopped:
            self._end_phase(item, report, call.duration)
        return report

    def agreement(self) -> Lockstep | None:
        """Return what settles rounds in the test at hand."""
        if self.why_stopped:
            return None
        from pytest_dtdispatch.ranks.exchange import Lockstep

        return Lockstep(self._exchange, str(test_number(self._config)))

    def merged(self, results: TestResults) -> TestResults:
        """Send what this rank measured in the test at hand; on the first rank, make one of what all did."""
        if self.why_stopped or not self._runs:
            return results
        key = f"rows/{test_number(self._config)}"
        numbers = {
            kind: [(one.name, one.metric, one.value) for one in results.numbers([kind])] for kind in KINDS
        }
        self._exchange.put(key, [encode(results.measurements()), numbers, encode(results.verdicts)])
        if not self._rank.world.is_first:
            return results
        found = self._gather(key, "send its rows")
        try:
            rows = {rank: [merge.read_measurement(one) for one in sent[0]] for rank, sent in found.items()}
            largest = {
                kind: merge.merge_numbers(
                    {rank: [MetricValue(*one) for one in sent[1][kind]] for rank, sent in found.items()}
                )
                for kind in KINDS
            }
            said = {rank: decode(tuple[RowVerdict, ...], sent[2]) for rank, sent in found.items()}
        except (ValueError, TypeError) as error:
            raise RanksError(f"what a rank sent as its rows is none: {error}") from None
        for one in (one for of_kind in largest.values() for one in of_kind if one.ranks):
            which = f"{one.name}: {one.metric} is {one.value:,} on {ranks_text(one.ranks)}"
            self._differ[one.name, one.metric] = f"{which}, and less or none elsewhere"
        merged_rows = merge.merge_ranks(rows, self._settings.rank_stat)
        return results.merged(merged_rows, largest, merge.merge_verdicts(said))

    @property
    def summary(self) -> str:
        """One line: how many ranks there are, and on how many machines."""
        machines = len({introduction["host"] for introduction in self._introductions.values()})
        return f"{self._rank.world.size} ranks on {f'{machines} machines' if machines > 1 else '1 machine'}"

    def document(self) -> Document:
        """Say what went wrong on which rank."""
        failed = [*self._complaints, *filter(None, [self.why_stopped])]
        told = [one_line(Span(f"failed: {text}", Tone.BAD)) for text in failed]
        output = [Verbatim(tuple(self._output_of(rank))) for rank in sorted(self._exchange.lost)]
        notices = [one_line(Span(text, Tone.NOTICE)) for text in self._differ.values()]
        return Document((*told, *output, *notices))

    def _compare(self, tests: list[str]) -> str:
        """Say how ranks differ in what they collected; empty where they do not."""
        exchange, errors = self._exchange, self._collect_errors
        digest = hashlib.sha256(json.dumps(tests).encode()).hexdigest()
        exchange.put("collected", [digest, errors, self._rank.introduction()])
        found = exchange.gather("collected", "collect its tests")
        self._introductions = {rank: introduction for rank, (_, _, introduction) in found.items()}
        if len({json.dumps(theirs, sort_keys=True) for _, theirs, _ in found.values()}) > 1:
            return _collect_errors({rank: theirs for rank, (_, theirs, _) in found.items()})
        if len({theirs for theirs, _, _ in found.values()}) == 1:
            return ""
        exchange.put("tests", tests)
        collected = exchange.gather("tests", "name its tests")
        differ = ((rank, merge.collected_difference(collected[0], had)) for rank, had in collected.items())
        rank, how = next((rank, how) for rank, how in differ if how)
        return f"ranks collected different tests: rank {rank} {how}"

    def _end_phase(self, item: pytest.Item, report: pytest.TestReport, duration: float) -> None:
        ours = _outcome(report)
        try:
            key = self._end_of(str(report.when))
            self._exchange.put(key, ours)
            self._exchange.end_of_part = self._end_of(NEXT[str(report.when)])
            # What failed here may have waited for the others already.
            waited = min(duration, self._settings.timeout) if ours.label == FAILED else 0.0
            found = self._gather(key, f"end the {report.when} of {item.nodeid}", waited)
            outcomes = {rank: PhaseOutcome(*theirs) for rank, theirs in found.items()}
        except RanksError as error:
            self._stop(item.session, str(error))
            _fail(report, [str(error)])
            return
        if report.when == "setup":
            self._runs = all(outcome.label == "passed" for outcome in outcomes.values())
        self._merge(item, report, outcomes)
        if self._exchange.lost:
            self._stop(item.session, lost_text(self._exchange.lost))

    def _merge(
        self, item: pytest.Item, report: pytest.TestReport, outcomes: Mapping[int, PhaseOutcome]
    ) -> None:
        failed = any(outcome.label == FAILED for outcome in outcomes.values())
        if merge.all_agree(outcomes) and not failed:
            return
        said = merge.complaints(outcomes)
        self._complaints += [f"{item.nodeid} ({report.when}): {line}" for line in said]
        _fail(report, said)
        for rank, outcome in outcomes.items():
            is_told = rank == self._rank.world.rank or outcome.details in ("", outcome.why)
            if outcome.label == FAILED and not is_told:
                report.sections.append((f"failure on rank {rank}", outcome.details))

    def _end_of(self, part: str) -> str:
        return f"test/{test_number(self._config)}/{part}"

    def _gather(self, key: str, what: str, waited: float = 0.0) -> dict[int, Any]:
        timeout = self._settings.timeout
        return self._exchange.gather(key, what, timeout - waited + max(GRACE * timeout, 1.0))

    def _stop(self, session: pytest.Session, why: str) -> None:
        self.why_stopped = why
        session.shouldfail = why
        if bridge := self._config.pluginmanager.get_plugin("dtdispatch-bridge"):
            bridge.keep_files()

    def _output_of(self, rank: int) -> list[str]:
        """The end of what a lost rank printed, where that is on this machine."""
        here, there = self._introductions.get(self._rank.world.rank, {}), self._introductions.get(rank, {})
        log = str(there.get("log", ""))
        if not log:
            return []
        if there.get("host") != here.get("host"):
            return [f"output of rank {rank}: {log} on {there.get('host')}"]
        if there.get("pid") and not self._exchange.lost[rank].startswith(ENDED_ITS_RUN):  # it hangs
            with suppress(OSError):  # it has ended
                os.kill(there["pid"], STACK_SIGNAL)  # which makes it write to its output where it does
                time.sleep(WRITES_STACK_S)
        said = _shortened(tail_of(log, LONGEST_LOG).splitlines())
        return [f"the end of the output of rank {rank}:", *said] if said else []


def _shortened(log: list[str]) -> list[str]:
    """Leave of each stack in a log the innermost calls."""
    starts = [n for n, line in enumerate(log) if STACK_TITLE in line]
    if not starts:
        return log[-MOST_LINES:]
    return [*log[: starts[0]][-MOST_LINES:], *log[starts[-1] :][: MOST_CALLS + 1]]


def _outcome(report: pytest.TestReport) -> PhaseOutcome:
    if hasattr(report, "wasxfail"):
        label = "xfailed" if report.skipped else "xpassed"
        return PhaseOutcome(report.nodeid, label, str(report.wasxfail)[:LONGEST])
    if report.outcome == FAILED:
        sections = [f"--- {name}\n{text}" for name, text in report.sections]
        details = "\n".join([report.longreprtext, *sections]).strip()
        return PhaseOutcome(report.nodeid, FAILED, _reason(report), details[-TAIL:])
    why = report.longrepr[2] if report.outcome == SKIPPED and isinstance(report.longrepr, tuple) else ""
    return PhaseOutcome(report.nodeid, report.outcome, str(why).removeprefix("Skipped: ")[:LONGEST])


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else _last_line(report.longreprtext)
    return (text.strip().splitlines() or ["failed"])[0][:LONGEST]


def _fail(report: pytest.TestReport, lines: Sequence[str]) -> None:
    """Let a report say that its test failed elsewhere."""
    text = "\n".join(lines)
    if report.outcome == FAILED:
        report.sections.append(("all ranks", text))
        return
    report.outcome = "failed"
    report.longrepr = text
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def _collect_errors(errors: Mapping[int, Mapping[str, str]]) -> str:
    who = group_ranks(
        (rank, f"could not collect {module}: {why}")
        for rank, theirs in errors.items()
        for module, why in theirs.items()
    )
    return "; ".join(f"rank {', '.join(map(str, ranks))} {error}" for error, ranks in who.items())


def _last_line(text: str) -> str:
    lines = [line.removeprefix("E ").strip() for line in text.strip().splitlines()]
    return lines[-1][:LONGEST] if lines else ""
