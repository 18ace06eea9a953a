"""Counts of started processes are returned to the parent unchanged, without side effects on the program."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.core.events import Phase
from pytest_dtdispatch.steps.events import QueriedCache
from pytest_dtdispatch.steps.measure import ProcessCounts, counting_in_processes

pytestmark = pytest.mark.torch


def run_here(process: Any) -> None:
    """Replace the start of a process: run its target in this process."""
    process.run()


def spawned(target: Callable[..., object], *args: object) -> Any:
    return multiprocessing.get_context("spawn").Process(target=target, args=args)


def test_counts_of_spawned_process_are_returned(shard: Callable[..., Any], tmp_path: Path) -> None:
    a, counts = shard(8, 8), ProcessCounts(str(tmp_path))
    counts.start(run_here, spawned(lambda b: ((a + b).redistribute(placements=[Replicate()]), a + b), a))
    [(number, found)] = counts.found()
    assert (number, counts.started, found.hits) == (1, 1, 1)
    [miss], [moved], [collective] = found.missed, found.redistributions, found.collective_runs
    assert isinstance(miss.queried, QueriedCache)
    assert miss.place is not None
    assert (miss.place.file, miss.place.phase) == (__file__, Phase.FORWARD)
    assert moved.place is not None
    assert moved.place.line == miss.place.line
    assert (collective.kind, collective.place) == ("all_gather", moved.place)
    assert (miss.reason, moved.source, moved.target) == ("first call of this op", ("S0",), ("R",))


def test_exiting_process_reports_its_counts(shard: Callable[..., Any], tmp_path: Path) -> None:
    a, counts = shard(8, 8), ProcessCounts(str(tmp_path))

    def body() -> None:
        a * a
        raise SystemExit(77)

    with pytest.raises(SystemExit, match="77"):
        counts.start(run_here, spawned(body))
    assert [found.misses for _, found in counts.found()] == [1]


def test_processes_that_cannot_count_run_silently(tmp_path: Path) -> None:
    ran: list[str] = []
    counts = ProcessCounts(str(tmp_path))
    forked = multiprocessing.get_context("fork").Process(target=ran.append, args=("forked",))
    counts.start(run_here, forked)
    counts.start(run_here, multiprocessing.get_context("spawn").Process())
    counts.start(run_here, spawned(ran.append, "killed as it wrote"))
    (tmp_path / "3").write_text('{"hits": 1, "mis')
    assert (counts.started, list(counts.found())) == (3, [])
    assert ran == ["forked", "killed as it wrote"]


def test_counting_restores_process_start() -> None:
    before = multiprocessing.process.BaseProcess.start
    with counting_in_processes() as counts:
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert counts.started == 1
    assert multiprocessing.process.BaseProcess.start is before
