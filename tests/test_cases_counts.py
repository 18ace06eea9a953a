"""Programs whose counts, reasons and labels are known."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs
from tests.probes import FSDP_WITHOUT_CUDA, has, needs

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
OF_FSDP = ("test_backward_lines", "test_module_owners", "test_norm_module", "test_prefetch_module")
SKIPPED = () if has(FSDP_WITHOUT_CUDA) else OF_FSDP
PROGRAMS = {
    name: pytest.param(name, marks=[needs(FSDP_WITHOUT_CUDA)] if name in OF_FSDP else [])
    for name in programs("counts")
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    chosen = [name for name in QUICK if name not in SKIPPED]
    return failures("counts", tmp_path_factory.mktemp("quick"), programs=chosen)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    chosen = [name for name in OTHERS if name not in SKIPPED]
    return failures("counts", tmp_path_factory.mktemp("others"), programs=chosen)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("simulated")
    return failures("counts", folder, "--dtdispatch-backend", "local", programs=SIMULATED)


@pytest.mark.parametrize("program", [PROGRAMS[name] for name in QUICK])
def test_quick_program_is_right(quick: dict[str, list[str]], program: str) -> None:
    assert quick[program] == []


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("program", [PROGRAMS[name] for name in OTHERS])
def test_program_is_right(others: dict[str, list[str]], program: str) -> None:
    assert others[program] == []


@pytest.mark.long
@pytest.mark.parametrize("program", SIMULATED)
def test_simulated_program_is_right(simulated: dict[str, list[str]], program: str) -> None:
    assert simulated[program] == []
