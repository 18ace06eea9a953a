"""The environment of a run, as it is saved."""

from __future__ import annotations

import json

from pytest_dtdispatch.core.environment import Environment

ENVIRONMENT = Environment("2.13.0", "abc123", "", "cpu", "", "fake", 4, 2, "native+python")


def test_an_environment_is_plain_data_that_comes_back_from_a_file_as_it_was() -> None:
    data = json.loads(json.dumps(ENVIRONMENT.as_dict()))
    assert Environment(**data) == ENVIRONMENT
    assert data["world_size"] == 4
    assert data["cache_interface"] == "native+python"
