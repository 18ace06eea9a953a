"""The object of a run, without tests."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dtdispatch.plugin.resolve import valid_settings
from pytest_dtdispatch.plugin.run import Run
from pytest_dtdispatch.report.document import notice


class FirstRank:
    """First of two ranks, which records its calls."""

    why_stopped = summary = ""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def outlive_others(self) -> None:
        self.calls.append("outlive others")

    def document(self) -> Any:
        self.calls.append("judge")
        return notice("2 ranks")


def test_first_rank_outlives_others_before_it_judges(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--dtdispatch")
    settings = valid_settings(config)
    assert settings is not None
    run, rank = Run(config, settings), FirstRank()
    run.ranks = rank  # type: ignore[assignment]
    run.end()
    assert rank.calls == ["outlive others", "judge"]
