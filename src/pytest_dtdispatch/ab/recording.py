"""The file of a run: written after each process, read to go on after an interruption."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from pytest_dtdispatch.ab.model import (
    CONFIRM,
    METRICS,
    SCREEN,
    Pair,
    ProcessSample,
    Request,
    Run,
    Side,
    in_turns,
    read_absent,
    read_details,
    read_numbers,
    row_samples,
)
from pytest_dtdispatch.core.files import read_text, write_whole
from pytest_dtdispatch.core.forms import AB_FORMAT
from pytest_dtdispatch.core.parsing import read_count, read_seconds
from pytest_dtdispatch.core.shown import brief
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import DtDispatchError

MOST_SHARE = 10.0  # of floors and of the control: 1000 %
VERSION = 1
MOST_BYTES = 256 * 2**20
ADDED_LATER = ("metric", "threshold", "pythons")  # of a request; older files do not have them


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

    def keep_whole_rounds(self, stage: str, rounds: Sequence[Sequence[str]]) -> int:
        """Drop processes of a round that was cut off, and say how many rounds of a stage are whole.

        Processes of a round run one after the other: what is left of it is worth nothing beside later ones.
        """
        ran = [process.side for process in self.run.of(stage)]
        order = [side for each in rounds for side in each]
        if ran != order[: len(ran)]:
            raise DtDispatchError(
                f"--resume {self.path}: not whole: the processes of its {stage} are not the rounds that the "
                "rest of it asks for; start a new file"
            )
        ends = list(accumulate(map(len, rounds), initial=0))
        whole = bisect_right(ends, len(ran)) - 1
        cut = len(ran) - ends[whole]
        self.run = replace(self.run, processes=self.run.processes[: len(self.run.processes) - cut])
        return whole

    def finish(self, found: Mapping[Pair, Iterable[RowVerdict]]) -> None:
        """Add what was found, by base and head; an interval without an end is no number of JSON's."""
        self._write(
            {
                "base": base,
                "head": head,
                "row": one.row,
                "verdict": str(one.verdict),
                "figures": {name: value if math.isfinite(value) else None for name, value in one.figures},
                "remedy": one.remedy,
            }
            for (base, head), verdicts in found.items()
            for one in verdicts
        )

    def _write(self, verdicts: Iterable[Mapping[str, object]] = ()) -> None:
        if self.path is not None:
            head = {"format": AB_FORMAT, "version": VERSION}
            content = {**head, **asdict(self.run), "verdicts": list(verdicts)}
            write_whole(self.path, json.dumps(content, indent=1) + "\n")


def read_run(flag: str, path: Path, command: str) -> Run:
    """Read the file of an earlier run."""
    try:
        run = _read_json(read_text(path, MOST_BYTES, f"larger than {MOST_BYTES:,} bytes"))
    except OSError as error:
        raise DtDispatchError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # of decoding, too
        what = "no text" if isinstance(error, UnicodeDecodeError) else brief(error)
        raise DtDispatchError(f"{flag} {path}: {what}") from None
    if run.asked.command != command:
        raise DtDispatchError(f"{flag} {path}: was written by dtdispatch {run.asked.command}, not {command}")
    return run


def resumed(path: Path, command: str, given: Mapping[str, object]) -> Run:
    """Read an interrupted run, and check what was typed against what it was measured with."""
    run = read_run("--resume", path, command)
    before = asdict(run.asked)
    for name, value in given.items():
        if before[name] != value:
            raise DtDispatchError(
                f"--resume {path}: it was measured with {name}={_text(before[name])}, not {_text(value)}; "
                "leave it out, or start a new file"
            )
    return run


def check_sides(path: Path, before: Mapping[str, Side], now: Mapping[str, Side]) -> None:
    """Check that all sides are what they were when the file was begun."""
    for name, side in before.items():
        for field, was in asdict(side).items():
            value = getattr(now[name], field) if name in now else was
            if value != was:
                raise DtDispatchError(
                    f"--resume {path}: {name} was measured with {field} {was!r}, and this is {value!r}; "
                    "start a new file"
                )


def _read_json(text: str) -> Run:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("no JSON, or cut off") from None
    if not isinstance(content, dict) or content.get("format") != AB_FORMAT:
        raise ValueError(f'no file of dtdispatch ab or matrix: it has no "format": "{AB_FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(f"version {content.get('version')!r} of the format; this one reads {VERSION}")
    try:
        asked = _asked(content["asked"])
        names = tuple(asked.interpreters)
        run = Run(
            asked,
            {
                name: Side(**{field: str(side[field]) for field in Side.__dataclass_fields__})
                for name, side in content["sides"].items()
                if name in names
            },
            tuple(_process(process, names) for process in content["processes"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"not whole: {type(error).__name__}: {error}") from None
    _check_order(run)
    return run


def _process(process: Mapping[str, Any], sides: Sequence[str]) -> ProcessSample:
    stage, side = process["stage"], process["side"]
    if stage not in (SCREEN, CONFIRM) or side not in sides:
        raise ValueError(f"a process of {stage!r}, {side!r}")
    return ProcessSample(
        stage,
        side,
        read_seconds(process["seconds"]),
        row_samples(process["rows"]),
        read_numbers(process.get("numbers", {})),
        read_details(process.get("details", {})),
        read_absent(process.get("absent", {})),
    )


def _asked(given: Mapping[str, Any]) -> Request:
    """Read what was asked for, which is held to what a command line is held to."""
    values: dict[str, Any] = {}
    for name, usual in asdict(Request()).items():
        value = given.get(name, usual) if name in ADDED_LATER else given[name]
        if isinstance(usual, tuple):
            values[name] = tuple(str(word) for word in value)
        elif isinstance(usual, str):
            values[name] = str(value)
        elif isinstance(usual, int):
            values[name] = read_count(value)
        elif isinstance(usual, float):
            values[name] = _share(name, value)
    if values["metric"] not in METRICS:
        raise ValueError(f"a metric {values['metric']!r}")
    return Request(**values)


def _share(name: str, value: Any) -> float:
    share = float(value)
    is_off = name == "control" and share == 0
    if not is_off and not 0 < share <= MOST_SHARE:
        raise ValueError(f"{name} of {value!r}")
    return share


def _check_order(run: Run) -> None:
    """Check that processes ran in the order that they are dealt to sides in, and no more of them."""
    rounds = {SCREEN: run.asked.pairs, CONFIRM: run.asked.confirm}
    for stage, number in rounds.items():
        ran = [process.side for process in run.of(stage)]
        # Fresh rounds are of those sides that the screen suspects; each stands in the first of them.
        sides = tuple(dict.fromkeys(ran)) if stage == CONFIRM else tuple(run.asked.interpreters)
        if ran != list(chain.from_iterable(in_turns(sides, number)))[: len(ran)]:
            what = "rounds" if run.asked.pythons else "pairs"
            raise ValueError(f"not whole: the processes of its {stage} are not {number} {what} in turns")


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
