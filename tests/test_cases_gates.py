"""Programs about gates and failed tests, in one session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.long]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all programs of the folder."""
    return failures("gates", Path(tmp_path_factory.mktemp("cases")))


@pytest.mark.parametrize("program", programs("gates"))
def test_program_has_the_right_verdicts(failed: dict[str, list[str]], program: str) -> None:
    assert failed[program] == []
