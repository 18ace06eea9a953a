"""What is said beside the figures of a run."""

from __future__ import annotations

from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.report.notes import caveats
from tests.rendered import lines_of


def said(*tests: TestResults) -> list[str]:
    return lines_of(caveats(tests), 400)


def found(unseen: Unseen, is_simulated: bool = False) -> TestResults:
    results = TestResults()
    results.unseen, results.is_simulated = unseen, is_simulated
    return results


def test_where_all_was_seen_nothing_is_said() -> None:
    assert said(found(Unseen()), TestResults()) == []


def test_each_way_is_one_line_with_its_number_of_tests() -> None:
    threads, process = Unseen(threads=4, ops=8), Unseen(processes=1)
    modes = Unseen(modes=("CommDebugMode", "DebugMode"))
    lines = said(*map(found, (threads, threads + process, modes, Unseen(modes=("DebugMode",)))))
    assert [line.partition(",")[0].partition("; ")[0] for line in lines] == [
        "not measured: 2 tests ran DTensor ops (at least 16) in 8 threads of their own",
        "not measured: 1 test started 1 process",
        "not measured: 1 test opened CommDebugMode",
        "not measured: 2 tests opened DebugMode",
    ]


def test_simulated_ranks_are_told() -> None:
    [line] = said(found(Unseen(), is_simulated=True))
    assert line == "figures of 1 test hold the work of all ranks, which LocalTensorMode simulates"
