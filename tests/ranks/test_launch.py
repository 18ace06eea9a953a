"""The launcher starts every rank, restores the environment, and names the rank that failed."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from pytest_dtdispatch.ranks.launch import HANDLED, RankEnd, launch

pytestmark = pytest.mark.torch

WRITE = "import os; open('at-' + os.environ['RANK'], 'w').write(os.environ['X'] + os.environ['WORLD_SIZE'])"
FAIL = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(100)"
DIE = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(100)"


def start(folder: Path, program: str) -> list[RankEnd]:
    return launch(2, [sys.executable, "-c", program], {"X": "x"}, str(folder))


def test_launching_ranks_restores_our_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    before, disabled = dict(os.environ), logging.root.manager.disable
    handlers = [signal.getsignal(number) for number in HANDLED]
    assert start(tmp_path / "logs", WRITE) == []
    assert [(tmp_path / f"at-{rank}").read_text() for rank in range(2)] == ["x2", "x2"]
    assert dict(os.environ) == before
    assert logging.root.manager.disable == disabled
    assert [signal.getsignal(number) for number in HANDLED] == handlers


@pytest.mark.parametrize(
    ("program", "how"), [(FAIL, "ended with exit status 3"), (DIE, "was killed by SIGKILL")]
)
def test_failed_rank_is_named(tmp_path: Path, program: str, how: str) -> None:
    first, *others = start(tmp_path, program)
    assert str(first) == f"rank 1 {how}"
    assert all(end.is_terminated for end in others)
