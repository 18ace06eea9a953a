"""Programs of tests/cases/selection: selected rows, renamed tests, and processes of A/B runs."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.long]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("selection", tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("program", programs("selection"))
def test_program_does_not_fail(failed: dict[str, list[str]], program: str) -> None:
    assert failed[program] == []
