"""A process that is one of many ranks: it meets the others, keeps what it prints, and ends with them."""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.world import World
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.plugin import resolve

if TYPE_CHECKING:
    from pytest_dtdispatch.ranks.exchange import Exchange

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
