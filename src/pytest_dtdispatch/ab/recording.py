"""The file of a run: written after each process, read to go on after an interruption."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pytest_dtdispatch.ab.model import ProcessSample, Run, Side, as_json, read_json
from pytest_dtdispatch.core.files import read_text, write_whole
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import DtDispatchError

MOST_BYTES = 256 * 2**20


class Recorder:
    """Keep every sample, in memory and in a file where one was asked for."""

    def __init__(self, run: Run, path: Path | None) -> None:
        self.run = run
        self.path = path
        self._write()

    def add(self, process: ProcessSample) -> None:
        """Add a sample; the file has it before the next process starts."""
        self.run = replace(self.run, processes=(*self.run.processes, process))
        self._write()

    def finish(self, verdicts: Iterable[RowVerdict]) -> None:
        """Add what was found; an interval without an end is no number of JSON's."""
        self._write(
            {
                "row": one.row,
                "verdict": str(one.verdict),
                "figures": {name: value if math.isfinite(value) else None for name, value in one.figures},
                "remedy": one.remedy,
            }
            for one in verdicts
        )

    def _write(self, verdicts: Iterable[Mapping[str, object]] = ()) -> None:
        if self.path is not None:
            write_whole(self.path, as_json(self.run, verdicts) + "\n")


def read_run(flag: str, path: Path, command: str) -> Run:
    """Read the file of an earlier run."""
    try:
        run = read_json(read_text(path, MOST_BYTES, f"larger than {MOST_BYTES:,} bytes"))
    except OSError as error:
        raise DtDispatchError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # of decoding, too
        what = "no text" if isinstance(error, UnicodeDecodeError) else error
        raise DtDispatchError(f"{flag} {path}: {what}") from None
    if run.asked.command != command:
        raise DtDispatchError(f"{flag} {path}: was written by dtdispatch {run.asked.command}, not {command}")
    return run


def check_asked(path: Path, run: Run, given: Mapping[str, object]) -> None:
    """Check what was typed against what a file was measured with."""
    before = asdict(run.asked)
    for name, value in given.items():
        if before[name] != value:
            raise DtDispatchError(
                f"--resume {path}: it was measured with {name}={_text(before[name])}, not {_text(value)}; "
                "leave it out, or start a new file"
            )


def check_sides(path: Path, before: Mapping[str, Side], now: Mapping[str, Side]) -> None:
    """Check that both sides are what they were when the file was begun."""
    for name, side in before.items():
        for field, was in asdict(side).items():
            value = getattr(now[name], field) if name in now else was
            if value != was:
                raise DtDispatchError(
                    f"--resume {path}: {name} was measured with {field} {was!r}, and this is {value!r}; "
                    "start a new file"
                )


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
