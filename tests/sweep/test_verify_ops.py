"""The page on silent errors lists what verified ops of torch's database show on this torch."""

from __future__ import annotations

import signal

import pytest
import torch

from benchmarks.verify_ops import PAGE, late, row_of, verified
from tests.probes import LOCAL_TENSOR, needs
from tests.sweep.sweeping import slices

pytestmark = [
    pytest.mark.torch,
    needs(LOCAL_TENSOR),
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13"),
    pytest.mark.filterwarnings("ignore"),
]


def assert_listed(words: list[str], shard: str) -> None:
    signal.signal(signal.SIGALRM, late)
    page, unlisted = PAGE.read_text().splitlines(), []
    for name, result, _ in verified(words, shard):
        for row in map(row_of, result.wrong_ops):
            begin = f"| `{row.op}` | {row.fault} | "
            if not any(each.startswith(begin) and row.placements in each for each in page):
                unlisted.append(f"{name}: {row}")
    assert not unlisted


def test_wrong_losses_are_listed() -> None:
    assert_listed(["functional.mse_loss"], "1/1")


@pytest.mark.sweep
@pytest.mark.parametrize("number", slices())
def test_wrong_ops_are_listed(number: int) -> None:
    assert_listed([], f"{number + 1}/32")
