"""Programs with other tools and plugins in the same process."""

from __future__ import annotations

import pytest

from tests.case_runs import failures, programs

pytestmark = [pytest.mark.torch, pytest.mark.slow]

QUICK = ("test_pytest_toml",)
OTHERS = [name for name in programs("tools") if name not in QUICK]


@pytest.mark.parametrize("program", QUICK)
def test_quick_program_is_right(tmp_path_factory: pytest.TempPathFactory, program: str) -> None:
    assert failures("tools", tmp_path_factory.mktemp("quick"), programs=[program])[program] == []


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures("tools", tmp_path_factory.mktemp("others"), programs=OTHERS)


@pytest.mark.long
@pytest.mark.parametrize("program", OTHERS)
def test_program_is_right(others: dict[str, list[str]], program: str) -> None:
    assert others[program] == []
