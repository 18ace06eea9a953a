"""The table of a run on many ranks."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.ranks.merge import merge_ranks
from pytest_dtdispatch.report.document import Cell, View
from pytest_dtdispatch.report.rows import document
from tests.rendered import line_of, lines_of, table_of, titles_of

TITLES = ("miss ms", "slowest", "spread", "hit us", "slowest", "spread", "local us", "overhead us", "samples")


def measured(miss: int, hit: int, local: int, cold: int = 0) -> Measurement:
    ns = {State.MISS: miss, State.HIT: hit, State.LOCAL: local, State.COLD: cold}
    samples = tuple(Samples(state, (value,)) for state, value in ns.items() if value)
    return Measurement("add@2", "add@2", "add", "2", Contains.DISPATCH, 3, Figures(5, samples))


def cells_of(*ranks: Measurement, verbose: bool = False) -> tuple[tuple[str, ...], tuple[Cell, ...]]:
    merged = merge_ranks({rank: [one] for rank, one in enumerate(ranks)}, "max")
    said = document({"t.py::test": merged}, View(verbose, is_many=True))
    return titles_of(table_of(said)), line_of(said).cells


def test_a_line_has_the_middle_the_slowest_and_the_spread() -> None:
    titles, cells = cells_of(measured(1_000_000, 7_000, 2_000), measured(3_000_000, 9_000, 2_000))
    assert titles == TITLES
    assert cells == ("2.000", "3.000 r1", "100%", "8.00", "9.00 r1", "25%", "2.00", "6.00", "2+2")


def test_what_was_not_measured_is_a_dash_and_lines_fit_a_narrow_terminal() -> None:
    _, cells = cells_of(Measurement("a", "a", "a", "2", Contains.DISPATCH, 1, Figures()))
    assert cells == ("-",) * 8 + ("0+0",)
    merged = merge_ranks({rank: [measured(10**6, 7_000, 2_000)] for rank in range(4)}, "median")
    assert max(map(len, lines_of(document({"t": merged}, View(is_many=True)), 80))) <= 80


def test_where_only_one_slowest_rank_fits_it_is_that_of_a_hit() -> None:
    merged = merge_ranks({rank: [measured(10**6, 7_000 + rank, 2_000)] for rank in range(2)}, "median")
    head, *_ = lines_of(document({"t": merged}, View(is_many=True)), 44)
    assert head.split() == [*("signature", "miss", "ms", "hit", "us", "slowest")]
