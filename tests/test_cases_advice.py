"""Programs whose advice, or its absence, is known."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs(FSDP_WITHOUT_CUDA)]

QUICK = (
    "test_follow_micro_batches",
    "test_moe_reads",
    "test_qr",
    "test_sum_and_max",
    "test_trust_ratio",
    "test_two_meshes",
    "test_written_between",
)
OTHERS = [name for name in programs("advice") if name not in QUICK]
OF_RANKS = ("test_logits_label_smoothing", "test_written_between")  # run on two ranks too


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("advice", tmp_path_factory.mktemp("quick"), programs=QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("advice", tmp_path_factory.mktemp("others"), programs=OTHERS)


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("advice", tmp_path_factory.mktemp("ranks"), "--dtdispatch-nproc=2", programs=OF_RANKS)


@pytest.mark.parametrize("program", QUICK)
def test_quick_program_is_right(quick: dict[str, list[str]], program: str) -> None:
    assert quick[program] == []


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("program", OTHERS)
def test_program_is_right(others: dict[str, list[str]], program: str) -> None:
    assert others[program] == []


@pytest.mark.long
@pytest.mark.parametrize("program", OF_RANKS)
def test_program_is_right_on_ranks(on_ranks: dict[str, list[str]], program: str) -> None:
    assert on_ranks[program] == []
