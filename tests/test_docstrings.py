"""The examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import pytest_dtdispatch

PACKAGE = Path(pytest_dtdispatch.__file__).parent
TORCH_FLOORS = {"torchapi", "measuring", "meshes", "suite", "atlas"}


def runs_an_example(path: Path) -> bool:
    return any(">>> " in line and "+SKIP" not in line for line in path.read_text().splitlines())


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


WITH_EXAMPLES = [module_of(path) for path in sorted(PACKAGE.rglob("*.py")) if runs_an_example(path)]
TORCH_FREE = [name for name in WITH_EXAMPLES if name.split(".")[1] not in TORCH_FLOORS]
WITH_TORCH = [name for name in WITH_EXAMPLES if name not in TORCH_FREE]


def check_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted, f"no example of {name} was run"
    assert not results.failed, f"{results.failed} examples of {name} failed: see what they printed"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_examples_that_need_no_torch_do_what_they_say(name: str) -> None:
    check_examples(name)


@pytest.mark.torch
@pytest.mark.parametrize("name", WITH_TORCH)
def test_examples_that_need_torch_do_what_they_say_and_close_what_they_open(name: str) -> None:
    import torch.distributed as dist

    assert not dist.is_initialized()
    check_examples(name)
    assert not dist.is_initialized()
