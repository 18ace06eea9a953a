"""The floors of the design: imports go down only, and foreign private names stay in one module each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_dtdispatch

PACKAGE = Path(pytest_dtdispatch.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FLOORS = {
    "core": {"errors", "instructions", "compiled", "steps", "scaling"},
    "stats": set(),
    "report": {"core", "stats", "gates", "errors"},
    "gates": {"core", "stats", "errors"},
    "torchapi": {"core", "errors"},
    "measuring": {"core", "errors", "torchapi", "instructions"},
    "meshes": {"core", "errors", "torchapi", "measuring", "ranks"},
    "ranks": {"core", "errors", "report"},
}
TORCH_FLOORS = {
    "torchapi",
    "measuring",
    "meshes",
    "ranks",
    "suite",
    "atlas",
    "steps",
    "compiled",
    "scaling",
    "instructions",
}
PLAIN_FLOORS = {"core", "stats", "report", "gates"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def floor_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "glue"


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk what runs when a module is imported: no function bodies, nothing for type checkers alone."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", [m for m in MODULES if floor_of(m) in FLOORS], ids=name_of)
def test_a_floor_imports_only_itself_and_floors_below(path: Path) -> None:
    allowed = FLOORS[floor_of(path)] | {floor_of(path)}
    ours = [
        name.split(".")[1]
        for name in imported(ast.parse(path.read_text()))
        if name.startswith("pytest_dtdispatch.")
    ]
    assert set(ours) <= allowed


@pytest.mark.parametrize("path", [m for m in MODULES if floor_of(m) not in TORCH_FLOORS], ids=name_of)
def test_glue_and_data_do_not_import_torch_at_import_time(path: Path) -> None:
    for node in at_import_time(ast.parse(path.read_text())):
        for name in imported(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            heavy = name.split(".")[0] == "torch" or name.startswith(
                ("pytest_dtdispatch.measuring", "pytest_dtdispatch.meshes", "pytest_dtdispatch.torchapi")
            )
            assert not heavy, f"{name} is imported at import time"


@pytest.mark.parametrize("path", [m for m in MODULES if floor_of(m) in PLAIN_FLOORS], ids=name_of)
def test_data_judgements_and_reports_know_neither_torch_nor_pytest(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))}
    assert not roots & {"torch", "pytest", "pytest_benchmark"}


@pytest.mark.parametrize("path", [m for m in MODULES if m.name != "bridge.py"], ids=name_of)
def test_only_the_bridge_imports_pytest_benchmark(path: Path) -> None:
    assert not any(name.startswith("pytest_benchmark") for name in imported(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "path", [m for m in MODULES if floor_of(m) in TORCH_FLOORS - {"torchapi"}], ids=name_of
)
def test_only_their_homes_spell_private_names_of_torch(path: Path) -> None:
    tree = ast.parse(path.read_text())
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "sys"})
        and not ast.unparse(node.value).startswith(("self.", "super()"))
    ]
    modules = [
        name
        for name in imported(tree)
        if name.startswith("torch.") and any(part.startswith("_") for part in name.split("."))
    ]
    assert not private
    assert not modules
