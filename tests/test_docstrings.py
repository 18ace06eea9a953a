"""Examples in docstrings produce the documented results."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.test_layering import PACKAGE, PATHS, loads_torch


def has_an_example(source: str) -> bool:
    return any(">>> " in line and "+SKIP" not in line for line in source.splitlines())


WITH_EXAMPLES = [name for name, path in PATHS.items() if has_an_example(path.read_text("utf-8"))]


def check_examples(name: str) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name}".removesuffix(".__init__"))
    results = doctest.testmod(module)
    assert results.attempted, f"no example of {name} was run"
    assert not results.failed, f"{results.failed} examples of {name} failed: see the output"


@pytest.mark.parametrize("name", [name for name in WITH_EXAMPLES if not loads_torch(name)])
def test_examples_without_torch_are_correct(name: str) -> None:
    check_examples(name)


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in WITH_EXAMPLES if loads_torch(name)])
def test_examples_with_torch_are_correct_and_close_groups(name: str) -> None:
    import torch.distributed as dist

    assert not dist.is_initialized()
    check_examples(name)
    assert not dist.is_initialized()
