"""Notes on rows beside their figures: proofs, noise, uncaptured ops and explanations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Contains, Refused, Samples, State
from pytest_dtdispatch.core.store import TestRecord, Uncaptured
from pytest_dtdispatch.report.document import Tone, plain
from pytest_dtdispatch.report.notes import caveats, mark, noise, proved
from tests.rendered import lines_of
from tests.reported_runs import measured

QUIET = Samples(State.MISS, (1_000,) * 20)
NOISY = Samples(State.MISS, (1_000, 5_000) * 10)
REFUSED = Samples(State.HIT, (), (Refused("propagation ran again", 3),))
CALLS = Samples(State.CALL, (7,) * 20)
COUNTED = Samples(State.HIT, (9_000,), unit=INSTRUCTIONS)
row = partial(measured, "a")


@pytest.mark.parametrize(
    ("samples", "text", "tone"),
    [
        ((QUIET,), "", Tone.GOOD),
        ((NOISY,), "noisy miss", Tone.NOTICE),
        ((CALLS,), "unpropagated", Tone.GOOD),
        ((), "not measured", Tone.NOTICE),
        ((QUIET, REFUSED), "propagation ran again (3x)", Tone.BAD),
        ((NOISY, REFUSED), "propagation ran again (3x), noisy miss", Tone.BAD),
    ],
)
def test_unproved_or_noisy_row_is_marked(samples: tuple[Samples, ...], text: str, tone: Tone) -> None:
    assert mark(row(*samples)) == (text, tone)


def test_proved_and_noisy_rows_are_counted_once() -> None:
    rows = [row(QUIET, Samples(State.LOCAL, NOISY.values)), row(NOISY), row(QUIET, REFUSED)]
    [line] = proved(rows)
    assert plain(line.spans) == "2 of 3 rows are proved by the cache counters, 3 of 3 calls explained"
    assert [line.spans[0].tone for line in proved(rows[:2])] == [Tone.GOOD]
    [output, *_] = lines_of(noise(rows))
    assert output.startswith("2 of 3 rows are noisy: the halves of their passes differ by more than 10%")
    assert mark(row(*(Samples(state, NOISY.values) for state in State)))[0].endswith("noisy all")
    assert not [*proved([]), *noise([row(QUIET)]).blocks]


def test_traced_rows_are_marked_and_counted() -> None:
    traced = replace(row(NOISY), figures=replace(row(NOISY).figures, tracers=("coverage", "memray")))
    assert mark(traced) == ("noisy miss, traced by coverage, memray", Tone.NOTICE)
    assert len(lines_of(noise([traced, row(QUIET)]), 400)) == 2


def test_each_uncaptured_kind_is_one_line_with_count() -> None:
    threads, process = Uncaptured(threads=4, ops=8), Uncaptured(processes=1)
    modes = Uncaptured(modes=("CommDebugMode", "DebugMode"))
    uncaptured = (threads, threads + process, modes, Uncaptured(modes=("DebugMode",)))
    tests = [*(TestRecord(uncaptured=each) for each in uncaptured), TestRecord(is_simulated=True)]
    lines = lines_of(caveats(tests), 400)
    assert [line.partition(",")[0].partition("; ")[0] for line in lines] == [
        "not measured: 2 tests ran DTensor ops (at least 16) in 8 threads of their own",
        "not measured: 1 test started 1 process",
        "not measured: 1 test opened CommDebugMode",
        "not measured: 2 tests opened DebugMode",
        "figures of 1 test include the work of all ranks",
    ]
    assert lines_of(caveats([TestRecord()])) == []


def test_calls_without_a_figure_are_counted_by_op() -> None:
    call = replace(row(CALLS), contains=Contains.END_TO_END)
    assert "calls" not in plain(next(proved([call])).spans)
    rows = [replace(row(QUIET), calls=3), replace(row(CALLS), calls=2), row(COUNTED), call]
    assert plain(next(proved(rows)).spans).endswith(", 6 of 6 calls explained")
    rows += [replace(row(), op=op, calls=2) for op in "abcd"] + [replace(row(REFUSED), op="a")]
    [line] = proved(rows)
    assert plain(line.spans).endswith(
        ", 6 of 15 calls explained; without a figure: a (3x), b (2x), c (2x) and 1 op more"
    )
