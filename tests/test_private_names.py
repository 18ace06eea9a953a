"""Tests hold behaviour: none replaces a name of ours that begins with an underscore."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PATCHING = {"setattr", "delattr", "patch", "object", "replaced"}


def patched_in(source: str) -> list[str]:
    """Describe each private name of ours that a test replaces, or sets on an object that is not its own."""
    module = ast.parse(source)
    ours = set(names_of_ours(module))
    return [f"line {line}: {name}" for line, name in replaced_names(module, ours)]


def names_of_ours(module: ast.Module) -> Iterator[str]:
    """Names by which a test knows modules, classes and functions of ours."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_dtdispatch"):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.asname or "pytest_dtdispatch" for alias in node.names if is_ours(alias.name))


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "pytest_dtdispatch"


def replaced_names(module: ast.Module, ours: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PATCHING:
            name = patched_name(node, ours)
            if name and any(is_private(part) for part in name.split(".")):
                yield node.lineno, name
        for target in assigned(node):
            if is_private(target.attr) and ast.unparse(target.value) not in ("self", "cls"):
                yield target.lineno, ast.unparse(target)


def patched_name(call: ast.Call, ours: set[str]) -> str:
    """Give the whole name that a call replaces; nothing where it is no name of ours."""
    words = [str(argument.value) for argument in call.args[:2] if isinstance(argument, ast.Constant)]
    if words and is_ours(words[0]):
        return words[0]
    owner = ast.unparse(call.args[0]) if call.args else ""
    return f"{owner}.{words[0]}" if words and owner.partition(".")[0] in ours else ""


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
    yield from (target for target in targets if isinstance(target, ast.Attribute))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_private_name_of_ours_is_replaced() -> None:
    found = {str(path.relative_to(TESTS)): patched_in(path.read_text()) for path in TESTS.rglob("*.py")}
    assert len(found) > 100
    assert not {path: names for path, names in found.items() if names}


WAYS = """
monkeypatch.setattr('pytest_dtdispatch.measuring.rounds._now', 1)
monkeypatch.delattr(rounds.Rounds, '_now')
mock.patch.object(rounds.Rounds, '_now')
mock.patch('pytest_dtdispatch._now.later')
taken._now = 1
del taken._now
"""
OTHERS = """
monkeypatch.setattr(torch._C, '_clear', 1)
monkeypatch.setattr('torch.cuda.is_available', 1)
monkeypatch.setattr(rounds, 'LONGEST', 1)
self._now = 1
"""


def test_each_way_to_replace_a_private_name_of_ours_is_found() -> None:
    imported = "from pytest_dtdispatch.measuring import rounds"
    assert len(patched_in(imported + WAYS)) == len(WAYS.split("\n")) - 2
    assert patched_in(imported + OTHERS) == []
