"""What is said of rows beside their figures: proof, noise, what was not seen, and what they explain."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)
from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.report.document import Tone, View, plain
from pytest_dtdispatch.report.notes import caveats, explained_lines, mark, noise, proved
from tests.rendered import lines_of

QUIET = Samples(State.MISS, (1_000,) * 20)
NOISY = Samples(State.MISS, (1_000, 5_000, 4_000) * 7)
REFUSED = Samples(State.HIT, (), (Refused("propagation ran again", 3),))
CALLS = Samples(State.CALL, (7,) * 20)
COUNTED = Samples(State.HIT, (9_000,), unit=INSTRUCTIONS)
SEEN = "calls that captures saw"


def measured(*samples: Samples) -> Measurement:
    return Measurement("a", "a", "a", "4", Contains.DISPATCH, 1, Figures(20, samples))


@pytest.mark.parametrize(
    ("samples", "text", "tone"),
    [
        ((QUIET,), "", Tone.GOOD),
        ((NOISY,), "noisy", Tone.NOTICE),
        ((CALLS,), "unpropagated", Tone.GOOD),
        ((), "not measured", Tone.NOTICE),
        ((QUIET, REFUSED), "propagation ran again (3x)", Tone.BAD),
        ((NOISY, REFUSED), "propagation ran again (3x), noisy", Tone.BAD),
    ],
)
def test_a_row_is_marked_where_it_is_not_proved_or_noisy(
    samples: tuple[Samples, ...], text: str, tone: Tone
) -> None:
    assert mark(measured(*samples)) == (text, tone)


def test_what_is_proved_and_what_is_noisy_is_said_once() -> None:
    rows = [measured(QUIET, Samples(State.LOCAL, NOISY.values)), measured(NOISY), measured(QUIET, REFUSED)]
    assert [plain(line.spans) for line in proved(rows)] == ["2 of 3 rows are proved by the cache counters"]
    assert [line.spans[0].tone for line in proved(rows[:2])] == [Tone.GOOD]
    [line, *_] = lines_of(noise(rows))
    assert line.startswith("2 of 3 rows are noisy (local, miss): their samples scatter by more than 100%")
    assert not [*proved([]), *noise([measured(QUIET)]).blocks]


def test_each_way_not_to_be_seen_is_one_line_with_its_number_of_tests() -> None:
    threads, process = Unseen(threads=4, ops=8), Unseen(processes=1)
    modes = Unseen(modes=("CommDebugMode", "DebugMode"))
    unseen = (threads, threads + process, modes, Unseen(modes=("DebugMode",)))
    tests = [*(TestResults(unseen=each) for each in unseen), TestResults(is_simulated=True)]
    lines = lines_of(caveats(tests), 400)
    assert [line.partition(",")[0].partition("; ")[0] for line in lines] == [
        "not measured: 2 tests ran DTensor ops (at least 16) in 8 threads of their own",
        "not measured: 1 test started 1 process",
        "not measured: 1 test opened CommDebugMode",
        "not measured: 2 tests opened DebugMode",
        "figures of 1 test hold the work of all ranks",
    ]
    assert lines_of(caveats([TestResults()])) == []


# What rows explain


def signature(op: str) -> Signature:
    return Signature(op, ("f32[8]R",), (4,), "cpu")


def results(*, figures: dict[str, tuple[int, Samples]], once: dict[str, tuple[int, ...]]) -> TestResults:
    """Make results: of calls with figures how many and what was measured, of others what each took."""
    book = TestResults("t.py::test_a")
    for op, (calls, samples) in figures.items():
        book.enter(signature(op), Figures(1, (samples,)))
        for _ in range(calls - 1):
            book.count(signature(op))
    for op, each in once.items():
        book.enter(signature(op), Figures(notes=("runs once",)))
        for ns in each:
            book.note_in_place(signature(op), ns)
    return book


def hits(ns: int) -> Samples:
    return Samples(State.HIT, (ns,) * 20)


def lines(*books: TestResults, view: View | None = None) -> list[str]:
    found = {f"t.py::test_{number}": book for number, book in enumerate(books)}
    return [plain(line.spans) for line in explained_lines(found, view or View())]


@pytest.mark.parametrize(
    ("figures", "once", "said"),
    [
        ({"add": (3, hits(7)), "mm": (1, hits(9))}, {}, f"100 % of the dispatch time, 4 of 4 {SEEN}"),
        (  # a call without a figure counts as the quickest of its signature
            {"add": (9, hits(10_000))},
            {"set_": (500_000, 5_000)},
            f"at least 90.0 % of the dispatch time, 9 of 11 {SEEN}; without a figure: set_ (2x)",
        ),
        (  # what never hits counts as a miss
            {"glu": (1, Samples(State.MISS, (300_000,) * 8))},
            {"set_": (100_000,)},
            f"at least 75.0 % of the dispatch time, 1 of 2 {SEEN}; without a figure: set_ (1x)",
        ),
        ({"add": (1, COUNTED)}, {"set_": (5_000,)}, f"1 of 2 {SEEN}; without a figure: set_ (1x)"),
        ({"add": (1, COUNTED)}, {}, f"1 of 1 {SEEN}"),
    ],
)
def test_what_share_of_the_calls_and_of_their_time_rows_explain(
    figures: dict[str, tuple[int, Samples]], once: dict[str, tuple[int, ...]], said: str
) -> None:
    assert lines(results(figures=figures, once=once)) == [f"rows explain {said}"]


def test_each_test_with_something_unexplained_has_a_line() -> None:
    whole = results(figures={"add": (3, hits(7_000))}, once={})
    part = results(figures={"add": (3, hits(10_000))}, once=dict.fromkeys("abcd", (2500,)))
    assert lines(whole, part) == [
        f"rows explain at least 75.0 % of the dispatch time, 3 of 7 {SEEN} in t.py::test_1; "
        "without a figure: a (1x), b (1x), c (1x) and 1 op more"
    ]
    assert len(lines(*[part] * 9)) == 6, "five, and how many more"
    assert len(lines(*[part] * 9, view=View(verbose=True))) == 9
    whole.calls_passed_over = 40
    assert lines(whole)[0].endswith("; 40 others were not asked for")
    call = TestResults("t.py::test_a")
    call.enter_call("step", "4", Figures(1, (CALLS,)))
    assert lines(call) == []
