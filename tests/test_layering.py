"""Files import only from lower layers; external and private names are confined to one folder each."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = "pytest_dtdispatch"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
# Lowest first: a file imports from its own folder and from those listed before it.
FOLDERS = (
    *("errors", "stats", "core", "torchapi", "gates", "report", "rounds", "replay", "lines"),
    *("steps", "budget", "advice", "compiled", "instructions", "ranks", "meshes", "comparing", "verify"),
    "ab",
    *("api", "watch", "__init__", "plugin", "extend", "suite", "cli", "__main__"),
)
NEITHER_TORCH_NOR_PYTEST = {"core", "stats", "report", "gates", "rounds"}
LOADED_WITHOUT_TORCH = {
    *NEITHER_TORCH_NOR_PYTEST,
    *("__init__", "api", "plugin", "extend", "ab", "cli", "__main__"),
}
MAX_LAYERS, MAX_FUNCTION_LINES = 12, 60
OWN = {"self", "cls", "super()", "sys", "os"}  # private names of these are our own


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


PATHS = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(PATHS[name].read_text("utf-8"))


def folder(name: str) -> str:
    return name.partition(".")[0]


def imported(node: ast.AST) -> Iterator[str]:
    """Return the dotted names that a statement imports; ``from a import b`` imports ``a.b``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the nodes that run at import, without function bodies and type-checking blocks."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from at_import_time(child)


@functools.cache
def imports(name: str, walk: Callable[[ast.AST], Iterator[ast.AST]] = ast.walk) -> set[str]:
    return {each for node in walk(tree(name)) for each in imported(node)}


@functools.cache
def ours(name: str, walk: Callable[[ast.AST], Iterator[ast.AST]] = ast.walk) -> set[str]:
    """Return the files of the package that a file imports."""
    inner = [
        each.removeprefix(f"{PACKAGE}.") for each in imports(name, walk) if each.startswith(f"{PACKAGE}.")
    ]
    # In `from package.folder import thing`, the thing is a file or a name in a file.
    return {each if each in PATHS else each.rpartition(".")[0] or "__init__" for each in inner} - {name}


def from_outside(name: str, *packages: str) -> set[str]:
    return {each for each in imports(name) if folder(each) in packages}


@functools.cache
def loads_torch(name: str) -> bool:
    roots = {folder(each) for each in imports(name, at_import_time)}
    return "torch" in roots or any(loads_torch(each) for each in ours(name, at_import_time))


def private_names(module: ast.AST) -> Iterator[str]:
    """Yield private names of other packages except `_replace`, and names of private modules of torch."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_|replace$)", node.attr):
            if ast.unparse(node.value).partition(".")[0] not in OWN:
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif (
            isinstance(node, ast.Constant)
            and str(node.value).startswith("torch.")
            and "._" in str(node.value)
        ):
            yield f"line {node.lineno}: {node.value!r}"


def lines_without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    has_docstring = ast.get_docstring(node) is not None
    docstring = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1 if has_docstring else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def test_imports_are_acyclic_with_few_layers() -> None:
    layers: dict[str, int] = {}
    for name in TopologicalSorter({name: ours(name) for name in PATHS}).static_order():
        layers[name] = 1 + max((layers[below] for below in ours(name)), default=0)
    assert max(layers.values()) <= MAX_LAYERS, max(layers, key=lambda name: layers[name])


def test_files_import_only_from_lower_folders() -> None:
    order = {name: FOLDERS.index(folder(name)) for name in PATHS}
    assert not [(name, below) for name in PATHS for below in ours(name) if order[below] > order[name]]


def test_data_rules_and_reports_do_not_import_torch() -> None:
    plain = [name for name in PATHS if folder(name) in NEITHER_TORCH_NOR_PYTEST]
    assert not {name: found for name in plain if (found := from_outside(name, "torch"))}


def test_only_plugin_imports_pytest_and_pytest_benchmark() -> None:
    others = [name for name in PATHS if folder(name) not in ("plugin", "suite")]
    assert not {
        name: found for name in others if (found := from_outside(name, "pytest", "_pytest", "pluggy"))
    }
    assert [name for name in PATHS if from_outside(name, "pytest_benchmark")] == ["plugin.pytest_benchmark"]


def test_only_torchapi_uses_private_names_of_torch() -> None:
    others = [name for name in PATHS if folder(name) != "torchapi"]
    modules = [(name, each) for name in others for each in from_outside(name, "torch") if "._" in each]
    assert not modules
    # Files that import neither torch nor pytest cannot use their private names.
    knowing = [name for name in others if folder(name) not in NEITHER_TORCH_NOR_PYTEST]
    found = {name for name in knowing if [*private_names(tree(name))]}
    assert found == {"plugin.pytest_internals", "plugin.pytest_benchmark"}
    assert [name for name in PATHS if from_outside(name, "_pytest")] == ["plugin.pytest_internals"]


def test_torch_is_not_loaded_at_every_start() -> None:
    assert not [name for name in PATHS if folder(name) in LOADED_WITHOUT_TORCH and loads_torch(name)]


def test_functions_are_short() -> None:
    assert not {
        f"{name}.{node.name}": lines
        for name in PATHS
        for node in ast.walk(tree(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := lines_without_docstring(node)) > MAX_FUNCTION_LINES
    }


# Tests

PATCHING = {"setattr", "delattr", "patch", "object", "replaced"}
REPLACING = """
from pytest_dtdispatch.rounds import rounds
monkeypatch.setattr('pytest_dtdispatch.rounds.rounds._now', 1)
monkeypatch.delattr(rounds.Rounds, '_now')
mock.patch.object(rounds.Rounds, '_now')
mock.patch('pytest_dtdispatch._now.later')
taken._now = 1
del taken._now
monkeypatch.setattr(torch._C, '_clear', 1)
monkeypatch.setattr('torch.cuda.is_available', 1)
monkeypatch.setattr(rounds, 'LONGEST', 1)
self._now = 1
"""


def replaced_in(test: ast.Module) -> Iterator[str]:
    """Yield our private names that a test replaces, or sets on an object of another class."""
    inner = [node for node in ast.walk(test) if isinstance(node, ast.ImportFrom)]
    names = {PACKAGE, *(alias.name for node in inner if PACKAGE in str(node.module) for alias in node.names)}
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PATCHING:
            name = ".".join(ast.unparse(argument).strip("'") for argument in node.args[:2])
            if folder(name) in names and re.search(r"\._(?!_)", name):
                yield f"line {node.lineno}: {name}"
        for target in node.targets if isinstance(node, (ast.Assign, ast.Delete)) else ():
            if re.fullmatch(r"(?!(?:self|cls)\._).+\._(?!_)\w+", ast.unparse(target)):
                yield f"line {target.lineno}: {ast.unparse(target)}"


def test_tests_replace_no_private_names() -> None:
    tests = {str(path): path.read_text() for path in Path(__file__).parent.rglob("*.py")}
    # Parsing takes most of the time: a file without private names needs none.
    assert not {
        name: found
        for name, text in tests.items()
        if re.search(r"[.'\"]_(?!_)", text) and (found := [*replaced_in(ast.parse(text))])
    }
    assert {found[:6] for found in replaced_in(ast.parse(REPLACING))} == {f"line {n}" for n in range(3, 9)}
