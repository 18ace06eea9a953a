"""The layout of the package: imports go down only, and what is foreign stays in one folder each."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from benchmarks.layout import (
    FEATURES,
    PAGE,
    ROOT,
    Module,
    Package,
    class_names_that_stand_twice,
    draw_map,
    functions,
    imported,
    may_import,
    module_names_that_stand_twice,
    with_map,
)

PACKAGE = Package(ROOT)
MODULES = list(PACKAGE.modules.values())
WITHOUT_TORCH = {"core", "stats", "report", "gates"}
WITHOUT_TORCH_AT_IMPORT = {*WITHOUT_TORCH, "__init__", "__main__", "api", "cli", "errors", "plugin", "ab"}
MOST_FLOORS, MOST_ROOT_MODULES, MOST_FUNCTION_LINES = 12, 6, 40
OWN = {"self", "cls", "super()", "sys", "os"}
NO_NAMES = {
    *("again", "many", "obstacles", "holm", "book", "why", "tally"),
    *("counted", "counting", "counts", "section", "values"),
}


def importing(modules: Iterable[Module], *names: str) -> list[str]:
    """Name the modules that import one of these packages."""
    roots = {each.name: {name.partition(".")[0] for name in imported(each.tree)} for each in modules}
    return [name for name, theirs in roots.items() if theirs & {*names}]


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


def imported_at_import_time(module: Module) -> set[str]:
    """Give what is imported as soon as a module is, less the package's own name."""
    nodes = (node for node in at_import_time(module.tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {name.removeprefix("pytest_dtdispatch.") for node in nodes for name in imported(node)}


@functools.cache
def loading_torch() -> frozenset[str]:
    """Name the modules that import torch as soon as they are imported, themselves or by others."""
    imports = {module.name: imported_at_import_time(module) for module in MODULES}
    loading, before = {"torch"}, 0
    while len(loading) > before:
        before = len(loading)
        loading |= {
            name for name, theirs in imports.items() if any(in_one_of(other, loading) for other in theirs)
        }
    return frozenset(loading)


def in_one_of(name: str, modules: Collection[str]) -> bool:
    """Tell whether a name is that of a module, or stands in it."""
    return name in modules or any(name.startswith(f"{module}.") for module in modules)


def is_private_of_torch(name: str) -> bool:
    return name.startswith("torch.") and "._" in name.partition(" ")[0]


def private_names(module: Module) -> Iterator[str]:
    """Give names of others that begin with an underscore, as they are spelled, and where."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            if owner.partition(".")[0] not in OWN:
                yield f"line {node.lineno}: {owner}.{node.attr}"
        elif isinstance(node, ast.Constant) and is_private_of_torch(str(node.value)):
            yield f"line {node.lineno}: {node.value!r}"


def test_no_files_import_one_another_in_a_circle() -> None:
    assert not PACKAGE.circles


def test_the_longest_chain_of_imports_has_twelve_files_at_most() -> None:
    assert max(PACKAGE.floors.values()) <= MOST_FLOORS, " -> ".join(PACKAGE.longest_chain)


def test_a_file_imports_from_lower_layers_only() -> None:
    rooms = {name: module.room for name, module in PACKAGE.modules.items()}
    assert not [
        f"{module.name} imports {target}"
        for module in MODULES
        for target in sorted(PACKAGE.graph[module.name])
        if rooms[target] != module.room and not may_import(module.room, rooms[target])
    ]


def test_features_never_import_one_another() -> None:
    uses = PACKAGE.imports_of_rooms()
    assert not {room: both for room in FEATURES if (both := uses.get(room, set()) & {*FEATURES})}


def test_data_rules_and_reports_know_neither_torch_nor_pytest() -> None:
    plain = [module for module in MODULES if module.room in WITHOUT_TORCH]
    assert not importing(plain, "torch", "pytest", "pytest_benchmark")


def test_torch_is_not_loaded_with_what_is_imported_at_every_start() -> None:
    light = {module.name for module in MODULES if module.room in WITHOUT_TORCH_AT_IMPORT}
    assert not light & loading_torch()


def test_only_the_plugin_imports_pytest() -> None:
    # What the built-in suite has are tests.
    others = [module for module in MODULES if module.room not in ("plugin", "suite")]
    assert not importing(others, "pytest", "_pytest", "pluggy")


def test_only_the_bridge_imports_pytest_benchmark() -> None:
    assert importing(MODULES, "pytest_benchmark") == ["plugin.bridge"]


def test_only_torchapi_spells_private_names_of_torch() -> None:
    # The plugin spells private names of pytest, and what knows no torch can spell none of it.
    others = [module for module in MODULES if module.room not in ("torchapi", "plugin", *WITHOUT_TORCH)]
    assert not [f"{module.name}, {found}" for module in others for found in private_names(module)]


def test_private_modules_of_torch_are_imported_by_torchapi_alone() -> None:
    others = [module for module in MODULES if module.room != "torchapi"]
    assert not [
        f"{module.name} imports {name}"
        for module in others
        for name in imported(module.tree)
        if is_private_of_torch(name)
    ]


def test_the_path_of_a_module_in_a_string_decides_nothing() -> None:
    assert not [
        f"{module.name}: {text}"
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare) and "pytest_dtdispatch" in (text := ast.unparse(node))
    ]


def test_functions_are_short() -> None:
    assert not [
        (module.name, name, lines)
        for module in MODULES
        for name, lines in functions(module)
        if lines > MOST_FUNCTION_LINES
    ]


def test_few_files_stand_at_the_root() -> None:
    assert len(PACKAGE.root_modules) <= MOST_ROOT_MODULES, PACKAGE.root_modules


def test_a_name_of_a_file_or_of_a_class_means_one_thing() -> None:
    assert not module_names_that_stand_twice(PACKAGE)
    assert not class_names_that_stand_twice(PACKAGE)
    assert not {module.own_name for module in MODULES} & NO_NAMES


def test_the_map_of_the_documentation_is_that_of_the_imports() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == with_map(page, draw_map(PACKAGE)), "python benchmarks/layout.py --write renews it"


class TestWhatTheRulesAreReadFrom:
    """A small package of files that break rules."""

    @pytest.fixture
    def broken(self, tmp_path: Path) -> Package:
        ours = "from pytest_dtdispatch"
        files = {
            "__init__": "",
            "errors": "",
            "core.__init__": "",
            "core.one": f"def f():\n    {ours}.core.two import g\n",
            "core.two": "if TYPE_CHECKING:\n    import pytest_dtdispatch.core.one\n",
            "core.three": f"{ours}.plugin import table\n{ours} import errors\n",
            "plugin.__init__": "",
            "plugin.table": f"{ours}.errors import A\nclass A: ...\n",
            "plugin.three": "class A: ...\n",
        }
        for name, text in files.items():
            file = tmp_path.joinpath("src", "pytest_dtdispatch", *name.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Package(tmp_path)

    def test_imports_in_functions_and_for_type_checkers_make_circles(self, broken: Package) -> None:
        assert broken.circles == [("core.one", "core.two")]

    def test_floors_count_files_from_the_lowest(self, broken: Package) -> None:
        assert broken.floors["core.three"] == 3
        assert broken.longest_chain == ["core.three", "plugin.table", "errors"]

    def test_a_circle_counts_with_all_its_files(self, broken: Package) -> None:
        assert broken.floors["core.one"] == broken.floors["core.two"] == 2

    def test_imports_up_are_seen(self, broken: Package) -> None:
        assert broken.imports_of_rooms()["core"] == {"plugin", "errors"}
        assert may_import("plugin", "core")
        assert not may_import("core", "plugin")

    def test_names_that_stand_twice_are_seen(self, broken: Package) -> None:
        assert module_names_that_stand_twice(broken) == {"three": ["core.three", "plugin.three"]}
        assert class_names_that_stand_twice(broken) == {"A": ["plugin.table", "plugin.three"]}
