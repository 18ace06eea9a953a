"""Programs whose counts, reasons and labels are known."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.slow]

QUICK = (
    "test_loss_parallel_calls",
    "test_mesh_reason",
    "test_prefetch_module",
    "test_rank_ranges",
    "test_reads_double",
)
SIMULATED = ("test_local_mesh_reads",)  # its ranks are simulated
OTHERS = [name for name in programs("counts") if name not in (*QUICK, *SIMULATED)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("counts", tmp_path_factory.mktemp("quick"), programs=QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    found = failures("counts", tmp_path_factory.mktemp("others"), programs=OTHERS)
    simulated = tmp_path_factory.mktemp("simulated")
    return found | failures("counts", simulated, "--dtdispatch-backend", "local", programs=SIMULATED)


@pytest.mark.parametrize("program", QUICK)
def test_quick_program_is_right(quick: dict[str, list[str]], program: str) -> None:
    assert quick[program] == []


@pytest.mark.long
@pytest.mark.parametrize("program", [*OTHERS, *SIMULATED])
def test_program_is_right(others: dict[str, list[str]], program: str) -> None:
    assert others[program] == []
