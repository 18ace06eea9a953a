"""One process that ends: by itself, at its time limit, or with us. It leaves no children behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended.

    Args:
        status: its exit status; below 0 the signal that ended it.
        is_late: whether it was ended at its time limit.
    """

    status: int
    is_late: bool


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, time_limit_s: float
) -> ProcessEnd:
    """Run a process in a group of its own, and end the whole group when it is over, however it ended.

    Nothing is polled: this process sleeps until the other one ends, and takes no time from it.
    """
    late = threading.Event()
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as out:
        try:
            with held_back():  # no interrupt between the start of a process and our knowing of it
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
                with held_back():
                    _end_group(process)
                    process.wait()
    return ProcessEnd(status, late.is_set())


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back Ctrl-C and its like while a block runs; one that came is obeyed at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    before = {number: signal.signal(number, lambda *given: came.append(given)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0][0])


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let whoever ends this process, or closes its terminal, do as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _end_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    if process.poll() is None:
        late.set()
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is empty: all have ended
        os.killpg(process.pid, signal.SIGKILL)
