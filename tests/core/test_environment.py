"""The environment of a run, as it is saved."""

from __future__ import annotations

import json
import os

import pytest

from pytest_dtdispatch.core.environment import Environment, load_text

ENVIRONMENT = Environment("2.13.0", "abc123", "", "cpu", "", "fake", 4, 2, "native+python")


def test_an_environment_is_plain_data_that_comes_back_from_a_file_as_it_was() -> None:
    data = json.loads(json.dumps(ENVIRONMENT.as_dict()))
    assert Environment(**data) == ENVIRONMENT
    assert data["world_size"] == 4
    assert data["cache_interface"] == "native+python"


@pytest.mark.parametrize(
    ("load", "cores", "text"),
    [
        (0.31, 4, "load 0.3 on 4 cores"),
        (2.0, 4, "load 2.0 on 4 cores"),
        (3.9, 4, "load 3.9 on 4 cores: the machine is busy, and figures may scatter"),
        (0.5, 1, "load 0.5 on 1 core"),
    ],
)
def test_the_load_is_told_and_called_busy_past_half_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, load: float, cores: int, text: str
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert load_text() == text


def test_where_the_system_tells_no_load_nor_do_we(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert load_text().startswith("load unknown on ")
