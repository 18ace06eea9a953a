"""The page on silent errors lists what verified ops of torch's database show on this torch."""

from __future__ import annotations

import signal

import pytest

from benchmarks.verify_ops import PAGE, VERSION, Row, late, row_of, rows_of, table_of, verified
from tests.probes import LOCAL_TENSOR, needs
from tests.sweep.sweeping import slices

LISTED = rows_of(PAGE.read_text())

pytestmark = [
    pytest.mark.torch,
    needs(LOCAL_TENSOR),
    pytest.mark.skipif(
        VERSION not in set().union(*LISTED.values()), reason=f"the table lacks torch {VERSION}"
    ),
    pytest.mark.filterwarnings("ignore"),
]


def assert_listed(words: list[str], shard: str) -> None:
    signal.signal(signal.SIGALRM, late)
    unlisted = [
        f"{name}: {row}"
        for name, result, _ in verified(words, shard)
        for row in map(row_of, result.wrong_ops)
        if VERSION not in LISTED.get(row, ())
    ]
    assert not unlisted


def test_table_of_all_versions_is_read_back() -> None:
    rows = {Row("sum", "values", "S0"): {"2.13", "2.9"}, Row("sum", "values", "S1, R"): {"2.13"}}
    assert rows_of("\n".join(table_of(rows))) == rows


def test_wrong_losses_are_listed() -> None:
    assert_listed(["functional.mse_loss"], "1/1")


@pytest.mark.sweep
@pytest.mark.parametrize("number", slices())
def test_wrong_ops_are_listed(number: int) -> None:
    assert_listed([], f"{number + 1}/32")
