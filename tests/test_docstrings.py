"""The examples in docstrings do what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import pytest_dtdispatch

PACKAGE = Path(pytest_dtdispatch.__file__).parent


def runs_an_example(path: Path) -> bool:
    return any(">>> " in line and "+SKIP" not in line for line in path.read_text().splitlines())


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_at_once(path: Path) -> set[str]:
    """Name what a module imports when it is imported."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def with_torch() -> set[str]:
    """Name the modules that import torch, or others of ours that do."""
    imports = {module_of(path): imported_at_once(path) for path in PACKAGE.rglob("*.py")}
    found: set[str] = set()
    while more := {
        module
        for module, names in imports.items()
        if module not in found and any(name in found or name.partition(".")[0] == "torch" for name in names)
    }:
        found |= more
    return found


WITH_EXAMPLES = [module_of(path) for path in sorted(PACKAGE.rglob("*.py")) if runs_an_example(path)]
WITH_TORCH = sorted(with_torch().intersection(WITH_EXAMPLES))
TORCH_FREE = sorted(set(WITH_EXAMPLES) - set(WITH_TORCH))


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
