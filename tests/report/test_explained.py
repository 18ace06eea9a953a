"""What share of the dispatch time rows explain: what is known of each call, and nothing else."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Figures, Samples, State, Unit
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.report.document import View, plain
from pytest_dtdispatch.report.notes import explained, explained_lines


def signature(op: str) -> Signature:
    return Signature(op, ("f32[8]R",), (4,), "cpu")


def results(*, hits: dict[str, tuple[int, int]], once: dict[str, tuple[int, ...]]) -> TestResults:
    """Make results of calls that took so long: of hits how many and one figure, else each call."""
    book = TestResults("t.py::test_a")
    for op, (calls, ns) in hits.items():
        book.enter(signature(op), Figures(1, (Samples(State.HIT, (ns,) * 20),)))
        for _ in range(calls - 1):
            book.count(signature(op))
    for op, each in once.items():
        book.enter(signature(op), Figures(notes=("runs once",)))
        for ns in each:
            book.note_in_place(signature(op), ns)
    return book


def lines(*books: TestResults, view: View | None = None) -> list[str]:
    found = {f"t.py::test_{number}": book for number, book in enumerate(books)}
    return [plain(line.spans) for line in explained_lines(found, view or View())]


def test_all_calls_have_a_figure() -> None:
    book = results(hits={"add": (3, 7_000), "mm": (1, 9_000)}, once={})
    assert lines(book) == ["rows explain 100 % of the dispatch time, 4 of 4 calls that captures saw"]


def test_a_call_without_a_figure_counts_as_the_quickest_of_its_signature() -> None:
    book = results(hits={"add": (9, 10_000)}, once={"set_": (500_000, 5_000)})
    assert explained(book).least_share == 0.9
    assert lines(book) == [
        "rows explain at least 90.0 % of the dispatch time, 9 of 11 calls that captures saw; "
        "without a figure: set_ (2x)"
    ]


def test_what_never_hits_counts_as_a_miss() -> None:
    book = results(hits={}, once={"set_": (100_000,)})
    book.enter(signature("glu"), Figures(1, (Samples(State.MISS, (300_000,) * 8),)))
    assert explained(book).least_share == 0.75


def test_each_test_with_something_unexplained_has_a_line() -> None:
    whole = results(hits={"add": (3, 7_000)}, once={})
    part = results(hits={"add": (3, 10_000)}, once=dict.fromkeys("abcd", (2500,)))
    said = lines(whole, part)
    assert said == [
        "rows explain at least 75.0 % of the dispatch time, 3 of 7 calls that captures saw in t.py::test_1; "
        "without a figure: a (1x), b (1x), c (1x) and 1 op more"
    ]
    assert len(lines(*[part] * 9)) == 6, "five, and how many more"
    assert len(lines(*[part] * 9, view=View(verbose=True))) == 9


def test_calls_that_were_not_asked_for_are_no_part_of_the_share() -> None:
    book = results(hits={"add": (3, 7_000)}, once={})
    book.calls_passed_over = 40
    assert lines(book) == [
        "rows explain 100 % of the dispatch time, 3 of 3 calls that captures saw; "
        "40 others were not asked for"
    ]


def test_of_instructions_there_is_no_share_of_time() -> None:
    counted = Figures(1, (Samples(State.HIT, (9_000,), unit=Unit("instructions", is_time=False)),))
    book, whole = results(hits={}, once={"set_": (5_000,)}), TestResults("t.py::test_a")
    for each in (book, whole):
        each.enter(signature("add"), counted)
    assert lines(book) == ["rows explain 1 of 2 calls that captures saw; without a figure: set_ (1x)"]
    assert lines(whole) == ["rows explain 1 of 1 calls that captures saw"]


def test_nothing_is_said_where_no_capture_saw_a_call() -> None:
    book = TestResults("t.py::test_a")
    book.enter_call("step", "4", Figures(1, (Samples(State.CALL, (7,)),)))
    assert lines(book) == []
