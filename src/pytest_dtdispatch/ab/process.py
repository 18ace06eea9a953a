"""One process that ends: by itself, at its time limit, or with us. It leaves no children behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, time_limit_s: float
) -> int | None:
    """Run a process in a group of its own, and end the whole group when it is over, however it ended.

    Returns its exit status, below 0 the signal that ended it; None where it was ended at its time limit.
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
    return None if late.is_set() else status


@contextlib.contextmanager
def held_back() -> Iterator[None]:
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
