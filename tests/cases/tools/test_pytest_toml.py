"""Pytest 9's own TOML tables have numbers, booleans and lists: each value is read, or refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dtdispatch.plugin.resolve import run_settings

pytest_plugins = "pytester"
VALUES: list[tuple[str, Any]] = [
    ("rounds = 5", 5),
    ('rounds = "auto"', "auto"),
    ("repeat = 3", 3),
    ("max_time = 0.5", 0.5),
    ("compile_rounds = 8", 8),
    ("timeout = 30", 30.0),
    ("cold = true", True),
    ("annotations = false", False),
    ('ops = ["add*"]', ("add*",)),
    ('ops = "add*"', ("add*",)),
    ("mesh = [2, 4]", (2, 4)),
    ("max = {misses = 0}", {"misses": 0}),
]

pytestmark = pytest.mark.skipif(pytest.version_tuple < (9,), reason="requires pytest.toml of pytest 9")


@pytest.mark.parametrize(("line", "value"), VALUES)
def test_value_is_read(pytester: pytest.Pytester, line: str, value: Any) -> None:
    (pytester.path / "pytest.toml").write_text(f"[pytest]\ndtdispatch_{line}\n")
    settings = run_settings(pytester.parseconfig("--dtdispatch"))
    assert getattr(settings, line.partition(" ")[0]) == value


@pytest.mark.parametrize("line", ["rounds = 0", "cold = 3", "ops = [1]", "expected = 1.5"])
def test_bad_value_is_one_line(pytester: pytest.Pytester, line: str) -> None:
    (pytester.path / "pytest.toml").write_text(f"[pytest]\ndtdispatch_{line}\n")
    with pytest.raises(pytest.UsageError, match=r"pytest\.toml: dtdispatch_.* is not ") as error:
        run_settings(pytester.parseconfig("--dtdispatch"))
    assert "\n" not in str(error.value)
