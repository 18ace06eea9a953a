"""Instructions as callgrind counts them, of a process that runs under it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.instructions.client_requests import (
    DUMP_STATS_AT,
    MONITOR_COMMAND,
    RUNNING_ON_VALGRIND,
    START_INSTRUMENTATION,
    TOGGLE_COLLECT,
    ClientRequests,
)
from pytest_dtdispatch.instructions.probe import check
from pytest_dtdispatch.measuring.sampler import Meter

NAME = "callgrind"
LOG, DUMP = "valgrind.log", "callgrind.out"
EVENTS = re.compile(rb"^.*\bevents-\d+: *(\d+)", re.MULTILINE)  # of each thread, since the last dump


class Callgrind:
    """The callgrind that runs this process. To make one switches its instrumentation on, for good.

    Attributes:
        meter: counts instructions of this process.
    """

    def __init__(self, folder: Path) -> None:
        requests = ClientRequests()
        if not requests.prepared(RUNNING_ON_VALGRIND)():
            raise MeterError("this process does not run under valgrind")
        requests.prepared(START_INSTRUMENTATION)()
        self._folder = folder
        self._log = (folder / LOG).open("rb")
        self._ask = requests.prepared(MONITOR_COMMAND, requests.text("status internal"))
        self._dump = requests.prepared(DUMP_STATS_AT, requests.text("a profile"))
        self.toggle = requests.prepared(TOGGLE_COLLECT)
        self._at_last_end = self.total()
        self.meter = Meter(self.toggle, self._end)  # no function of Python's at the beginning: it would count
        check(self.meter, NAME)

    def total(self) -> int:
        """Read how many instructions were collected since the last dump."""
        self._log.seek(0, os.SEEK_END)
        self._ask()
        answer = self._log.read()
        found = EVENTS.findall(answer)
        if not found:
            raise MeterError(f"{NAME} did not tell what it counted: {answer[:80]!r}")
        return sum(map(int, found))

    def dump(self) -> Path:
        """Write which functions the instructions since the last dump belong to, and begin anew."""
        self._dump()
        self._at_last_end = self.total()
        return max(self._folder.glob(f"{DUMP}.*"), key=lambda path: int(path.suffix[1:]))

    def _end(self) -> int:
        self.toggle()
        before, self._at_last_end = self._at_last_end, self.total()
        return self._at_last_end - before


def command(valgrind: str, folder: Path) -> list[str]:
    """Write what goes in front of a command line, so that it runs under callgrind and is not counted yet."""
    return [
        valgrind,
        "--tool=callgrind",
        "--instr-atstart=no",  # 11 s for `import torch`, in place of 40 s
        "--collect-atstart=no",
        f"--callgrind-out-file={folder / DUMP}",
        f"--log-file={folder / LOG}",
    ]
