"""Programs on ranks: restarts, mixed meshes, debug levels, first differences, a watched rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.case_runs import CASES, failures, programs, selected

pytestmark = [pytest.mark.torch, pytest.mark.long]

RESTARTED = [name for name in programs("ranks") if name.startswith("test_restart")]
SAMPLE = [*RESTARTED, "test_first_difference"]  # `make test-sweep` runs all
PROGRAMS = [
    pytest.param(name, marks=[pytest.mark.sweep] * (name not in SAMPLE)) for name in programs("ranks")
]
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 -m pytest"


@pytest.fixture(scope="module")
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the failures of the selected programs: the restarted ones run in one start of two ranks."""
    launcher = (sys.executable, *TORCHRUN.split())
    flags = ("--dtdispatch-timeout=20", "--dtdispatch-max=misses=0,collectives=1")
    restarted = failures(
        "ranks", tmp_path_factory.mktemp("restarted"), *flags, programs=RESTARTED, launcher=launcher
    )
    others = [name for name in selected(request) if name not in RESTARTED]
    return {**restarted, **failures("ranks", tmp_path_factory.mktemp("others"), programs=others)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_on_ranks_is_right(program: str, failed: dict[str, list[str]]) -> None:
    assert failed.get(program) == []


@pytest.mark.parametrize("ending", ["", "dist.destroy_process_group()\n"], ids=["open", "destroyed"])
def test_rank_of_a_fake_group_reports(ending: str, tmp_path: Path) -> None:
    source = (CASES / "ranks" / "watched.py").read_text()
    (tmp_path / "watched.py").write_text(source + ending)
    of_launcher = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    command = [sys.executable, "-m", "pytest_dtdispatch", "watch", "watched.py"]
    result = subprocess.run(
        command, cwd=tmp_path, env=os.environ | of_launcher, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0
    assert "10 steps" in result.stderr
