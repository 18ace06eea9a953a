"""Programs with other tools and plugins in the same process."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("tools", tmp_path_factory.mktemp("tools"))


@pytest.mark.parametrize("program", programs("tools"))
def test_program_is_right(failed: dict[str, list[str]], program: str) -> None:
    assert failed[program] == []
