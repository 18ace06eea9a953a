"""What the processes of an A/B run measured, and what was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.parsing import read_count

BASE, HEAD, PYTHON = "base", "head", "python"
SCREEN, CONFIRM = "screen", "confirm"
TIME, COUNTS, INSTRUCTIONS = "time", "counts", "instructions"
METRICS = (TIME, COUNTS, INSTRUCTIONS)
MISSES = {str(State.MISS), str(State.COLD)}
T = TypeVar("T")
Pair = tuple[str, str]  # names of two sides that are compared: the base, and the head


@dataclass(frozen=True)
class RowSample:
    """One row in one process.

    Args:
        medians_ns: median latency of each pass over all tests, in nanoseconds, in the order taken.
        quietest_ns: the least median of a block, of all blocks that all passes were cut into.
        samples: how many latencies were recorded, in all passes.
    """

    medians_ns: tuple[float, ...]
    quietest_ns: float
    samples: int


@dataclass(frozen=True)
class ProcessSample:
    """One fresh process: a sample of its side, taken for a stage; its rows by name, or its numbers."""

    stage: str  # screen or confirm
    side: str
    seconds: float  # its start included
    rows: Mapping[str, RowSample]
    numbers: Mapping[str, float] = field(default_factory=dict)  # of a metric that is no time
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what counts consist of
    absent: Mapping[str, str] = field(default_factory=dict)  # why rows, or all rows of a test, are not there

    @property
    def quietest_ns(self) -> dict[str, float]:
        """Each row's one value: that of its quietest block.

        What else runs on the machine only ever adds, for seconds at a time, so that the least of many short
        blocks is the steadiest value of a process (Chen and Revels, 2016, https://arxiv.org/abs/1608.04295).
        """
        return {name: row.quietest_ns for name, row in self.rows.items()}


@dataclass(frozen=True)
class Request:
    """What was asked for: all that a run needs to go on from its file.

    Args:
        command: ``ab`` or ``matrix``.
        base: interpreter of the base.
        head: interpreter of the head.
        base_rev: commit of the base; empty where interpreters are compared.
        head_rev: commit of the head.
        arguments: of pytest; the default ones where empty.
        pairs: of processes in the screen.
        confirm: pairs of processes in the confirmation.
        passes: over all tests, in each process.
        floor_hit: the least shift that counts of a hit, and of a call that never propagates, as a fraction.
        floor_miss: of a miss, and of a cold call.
        control: shift of plain tensors past which nothing is judged, as a fraction; 0 to judge anyway.
        metric: what is compared: times, counts or instructions.
        threshold: the least shift of a count of instructions that counts, as a fraction.
        pythons: interpreters, in the order they are compared in, where they are not a base and a head.
    """

    command: str = "ab"
    base: str = ""
    head: str = ""
    base_rev: str = ""
    head_rev: str = ""
    arguments: tuple[str, ...] = ()
    pairs: int = 5
    confirm: int = 10
    passes: int = 5
    floor_hit: float = 0.075
    floor_miss: float = 0.10
    control: float = 0.03
    metric: str = TIME
    threshold: float = 0.02
    pythons: tuple[str, ...] = ()

    @property
    def interpreters(self) -> dict[str, str]:
        """The interpreter of each side, by its name: ``base`` and ``head``, or ``python-1`` and on.

        Example:
            >>> Request(pythons=("old", "new")).interpreters
            {'python-1': 'old', 'python-2': 'new'}
        """
        if self.pythons:
            return {f"{PYTHON}-{number}": python for number, python in enumerate(self.pythons, 1)}
        return {BASE: self.base, HEAD: self.head}

    def floor_of(self, row: str) -> float:
        """Give the least shift of a row that counts."""
        return self.floor_miss if state_of(row) in MISSES else self.floor_hit


@dataclass(frozen=True)
class Side:
    """What measured one side, as it told itself before the first process: versions, and the CPU."""

    python: str
    plugin: str
    torch: str
    build: str  # git revision that torch was built from
    cpu: str


@dataclass(frozen=True)
class Run:
    """Everything that is known of a run, at any time of it; processes in the order they ran."""

    asked: Request
    sides: Mapping[str, Side]
    processes: tuple[ProcessSample, ...] = ()

    def of(self, stage: str) -> tuple[ProcessSample, ...]:
        """Processes of a stage, in the order they ran."""
        return tuple(process for process in self.processes if process.stage == stage)


def state_of(row: str) -> str:
    """Give the state that a row's name ends in."""
    return row.rpartition("::")[2]


def flag_of(side: str) -> str:
    """Give the flag that names the interpreter of a side.

    Example:
        >>> flag_of("base"), flag_of("python-2")
        ('--base', '--python')
    """
    return f"--{side.partition('-')[0]}"


def in_turns(sides: Sequence[str], rounds: int) -> tuple[tuple[str, ...], ...]:
    """Give the sides of each round in the order they run in: each second round is turned round.

    A machine that grows slower at a steady rate then slows all sides by the same amount, and neighbours run
    one after the other in every round.

    Example:
        >>> in_turns("ABC", 3)
        (('A', 'B', 'C'), ('C', 'B', 'A'), ('A', 'B', 'C'))
    """
    return tuple(tuple(sides if turn % 2 == 0 else sides[::-1]) for turn in range(rounds))


def row_samples(rows: Mapping[str, Any]) -> dict[str, RowSample]:
    """Read rows of one process from plain data."""
    read = {}
    for name, row in rows.items():
        medians, quietest_ns = tuple(map(float, row["medians_ns"])), float(row["quietest_ns"])
        if not medians or not all(0 < ns < float("inf") for ns in (*medians, quietest_ns)):
            raise ValueError(f"latencies of {(*medians, quietest_ns)} ns")
        read[str(name)] = RowSample(medians, quietest_ns, read_count(row["samples"]))
    return read


def read_numbers(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Read numbers of one process from plain data."""
    read = {str(name): float(number) for name, number in numbers.items()}
    for name, number in read.items():
        if not math.isfinite(number):
            raise ValueError(f"{name}: {number}")
    return read


def read_absent(absent: Mapping[str, Any]) -> dict[str, str]:
    """Read why rows are not there from plain data."""
    return {str(name): str(why) for name, why in absent.items()}


def read_details(details: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read what counts consist of from plain data."""
    return {str(name): tuple(str(line) for line in lines) for name, lines in details.items()}
