"""Programs of tests/cases that need no flags: gates, effects on a program, selected rows, other tools."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs, selected

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]

# One program of each folder; `make test-sweep` runs all.
SAMPLE = {
    "gates": "test_lazy_iterator",
    "program": "test_function_mode",
    "selection": "test_ab_marker",
    "tools": "test_traced_budget",
}
PROGRAMS = [
    pytest.param(folder, program, marks=[pytest.mark.sweep] * (program != SAMPLE[folder]))
    for folder in SAMPLE
    for program in programs(folder)
]


@pytest.fixture(scope="module")
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run the selected programs of a folder in one session."""
    folder = request.param
    return failures(folder, tmp_path_factory.mktemp(folder), programs=selected(request, failed=folder))


@pytest.mark.parametrize(("failed", "program"), PROGRAMS, indirect=["failed"])
def test_program_is_right(failed: dict[str, list[str]], program: str) -> None:
    assert failed[program] == []
