"""Programs of tests/cases that need no flags: gates, effects on a program, selected rows, other tools."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]

PROGRAMS = [
    (folder, program) for folder in ("gates", "program", "selection", "tools") for program in programs(folder)
]


@pytest.fixture(scope="module")
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all programs of a folder in one session."""
    return failures(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(("failed", "program"), PROGRAMS, indirect=["failed"])
def test_program_is_right(failed: dict[str, list[str]], program: str) -> None:
    assert failed[program] == []
