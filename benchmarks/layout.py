"""The layout of the package in figures and in one picture, read from its source: nothing is imported.

``python benchmarks/layout.py [PATH]`` prints the figures of a checkout, this one where none is named;
``--floors`` adds the files of each floor and a longest chain, ``--map`` prints the picture of
``docs/architecture.md`` instead, and ``--write`` puts it there. A file is on the floor above the highest file
that it imports, wherever in the file the import stands: in a function and for type checkers alone, too.
"""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "pytest_dtdispatch"
FEATURES = ("budget", "steps", "compiled", "scaling", "instructions", "compare")
LAYERS = (  # the lowest first: a folder imports from the layers below its own
    ("mistakes", ("errors",)),
    ("data and statistics", ("core", "stats")),
    ("torch, rules, texts", ("torchapi", "gates", "report")),
    ("measuring", ("measuring",)),
    ("features, where ops run", (*FEATURES, "meshes", "ranks")),
    ("what tests and scripts use", ("api", "watch", "__init__")),
    ("pytest", ("plugin",)),
    ("commands, built-in benchmarks", ("ab", "atlas", "suite", "cli", "__main__")),
)
# Beside that, within a layer. A folder that is not named here imports from none of its own layer.
NEIGHBOURS = {
    ("core", "stats"),
    ("report", "gates"),
    ("meshes", "ranks"),
    ("__init__", "api"),
    ("__init__", "watch"),
    ("suite", "atlas"),
    ("cli", "ab"),
    ("cli", "atlas"),
    ("__main__", "cli"),
}
ONE_EACH = ("__init__", "model", "judge", "measure", "table")  # of a folder
MAP_WIDTH = 108
PAGE, BEGIN, END = Path("docs/architecture.md"), "<!-- map -->\n", "<!-- end of the map -->\n"


@dataclass(frozen=True)
class Module:
    """One file of the package.

    Attributes:
        name: dotted, without the package's own; ``__init__`` for the package itself.
        path: of the file.
        text: of the file.
    """

    name: str
    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """What the file says."""
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The folder that it is in, or its own name where it is in none."""
        return self.name.partition(".")[0]

    @property
    def own_name(self) -> str:
        """Name of the file without its ending."""
        return self.path.stem

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return len(self.text.splitlines())


class Package:
    """All files of the package in a checkout, and which of them imports which."""

    def __init__(self, checkout: Path) -> None:
        folder = checkout / "src" / PACKAGE
        found = (_module(path, folder) for path in sorted(folder.rglob("*.py")))
        self.modules = {module.name: module for module in found}

    @cached_property
    def graph(self) -> dict[str, tuple[str, ...]]:
        """By file the files that it imports."""
        return {
            name: tuple(sorted({t for t in self._targets(module) if t != name}))
            for name, module in self.modules.items()
        }

    @cached_property
    def circles(self) -> list[tuple[str, ...]]:
        """Files that import one another, directly or through others of them."""
        return sorted(group for group in _components(self.graph) if len(group) > 1)

    @cached_property
    def floors(self) -> dict[str, int]:
        """How many files the longest chain of imports from each file has; a circle counts with all of its."""
        floors: dict[str, int] = {}
        for group in _components(self.graph):  # what a group imports comes before it
            below = [floors[t] for name in group for t in self.graph[name] if t not in group]
            floors.update(dict.fromkeys(group, max(below, default=0) + len(group)))
        return floors

    @property
    def longest_chain(self) -> list[str]:
        """Files from the top floor down, each of which imports the next."""
        chain = [max(self.floors, key=lambda name: self.floors[name])]
        while below := [t for t in self.graph[chain[-1]] if t not in chain]:
            chain.append(max(below, key=lambda name: self.floors[name]))
        return chain

    @property
    def root_modules(self) -> list[str]:
        """Files that are in no folder of the package."""
        return [name for name, module in self.modules.items() if "." not in name and not _is_folder(module)]

    def imports_of_rooms(self) -> dict[str, set[str]]:
        """By folder the folders that its files import from."""
        rooms: dict[str, set[str]] = {module.room: set() for module in self.modules.values()}
        for name, targets in self.graph.items():
            room = self.modules[name].room
            rooms[room] |= {self.modules[target].room for target in targets} - {room}
        return rooms

    def _targets(self, module: Module) -> Iterator[str]:
        for name in imported(module.tree):
            inner = name.removeprefix(f"{PACKAGE}.")
            if name == PACKAGE or inner == name:
                continue
            # `from package.folder import thing`: the thing may be a file, or stand in the folder's own.
            known = (inner, inner.rpartition(".")[0], "__init__")
            yield next(name for name in known if name in self.modules)


def imported(tree: ast.AST) -> Iterator[str]:
    """Give the dotted names that are imported anywhere in a tree; of ``from a import b`` it is ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Give each function of a file with its lines, its docstring not among them."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            taken = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            yield f"{module.name}.{node.name}", (node.end_lineno or 0) - node.lineno + 1 - taken


def classes(module: Module) -> Iterator[str]:
    """Give the names of the classes of a file."""
    return (node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def module_names_that_stand_twice(package: Package) -> dict[str, list[str]]:
    """Give file names that stand in more than one folder, but for those that each feature may have once."""
    found = [(m.own_name, name) for name, m in package.modules.items() if m.own_name not in ONE_EACH]
    return _doubled(found)


def class_names_that_stand_twice(package: Package) -> dict[str, list[str]]:
    """Give class names that stand more than once."""
    return _doubled((one, name) for name, module in package.modules.items() for one in classes(module))


def layer_of(room: str) -> int:
    """Give the layer that a folder is in, from 0 for the lowest."""
    found = [number for number, (_, rooms) in enumerate(LAYERS) if room in rooms]
    if not found:
        raise ValueError(f"{room} is in no layer: put it into LAYERS of benchmarks/layout.py")
    return found[0]


def may_import(room: str, other: str) -> bool:
    """Say whether files of a folder may import files of another one."""
    return layer_of(other) < layer_of(room) or (room, other) in NEIGHBOURS


def draw_map(package: Package) -> str:
    """Draw the layers from the top down: each folder with what it is for, and what it imports."""
    uses = package.imports_of_rooms()
    order = [room for _, rooms in reversed(LAYERS) for room in rooms]
    lines: list[str] = []
    for title, rooms in reversed(LAYERS):
        left, right = "├┤" if lines else "┌┐"
        lines.append(f"{left}─ {title} {'─' * (MAP_WIDTH - len(title) - 5)}{right}")
        for room in rooms:
            if room in uses and room not in ("__init__", "__main__"):
                imports = [other for other in order if other in uses[room]]
                lines += _room_lines(room, _purpose(package.modules[room]), imports)
    return "\n".join([*lines, f"└{'─' * (MAP_WIDTH - 2)}┘", ""])


def figures(package: Package) -> Iterator[str]:
    """Give the figures of a checkout, a line each."""
    modules = package.modules.values()
    longest_module = max(modules, key=lambda module: module.lines)
    longest_function = max((f for module in modules for f in functions(module)), key=lambda found: found[1])
    yield f"files: {len(modules)}"
    yield f"root modules: {len(package.root_modules)} ({', '.join(package.root_modules)})"
    yield f"floors: {max(package.floors.values())}"
    yield "\n  ".join([f"circles of files: {len(package.circles)}", *map(" ".join, package.circles)])
    yield f"lines: {sum(module.lines for module in modules):,}"
    yield f"longest module: {longest_module.name}, {longest_module.lines} lines"
    yield f"modules of more than 300 lines: {sum(module.lines > 300 for module in modules)}"
    yield f"longest function: {longest_function[0]}, {longest_function[1]} lines without its docstring"
    long = sum(lines > 40 for module in modules for _, lines in functions(module))
    yield f"functions of more than 40 lines: {long}"
    for what, names in (
        ("module names", module_names_that_stand_twice(package)),
        ("class names", class_names_that_stand_twice(package)),
    ):
        said = "".join(f"\n  {name}: {' '.join(places)}" for name, places in sorted(names.items()))
        yield f"{what} that stand more than once: {len(names)}{said}"


def floors_lines(package: Package) -> Iterator[str]:
    """Give the files of each floor, the highest first, and a longest chain."""
    by_floor: dict[int, list[str]] = defaultdict(list)
    for name, floor in package.floors.items():
        by_floor[floor].append(name)
    for floor in sorted(by_floor, reverse=True):
        yield f"{floor:3} {' '.join(sorted(by_floor[floor]))}"
    yield f"a longest chain: {' -> '.join(package.longest_chain)}"


def with_map(page: str, drawn: str) -> str:
    """Put the picture into the page, between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n{drawn}```\n\n{END}{after}"


def main() -> None:
    """Obey the command line."""
    parser = argparse.ArgumentParser(description="Print the layout of the package in figures.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT, help="a checkout (default: this one)")
    parser.add_argument("--floors", action="store_true", help="name the files of each floor")
    parser.add_argument("--map", action="store_true", help="print the map alone")
    parser.add_argument("--write", action="store_true", help=f"put the map into {PAGE}")
    given = parser.parse_args()
    package = Package(given.path)
    if given.write:
        page = given.path / PAGE
        page.write_text(with_map(page.read_text(encoding="utf-8"), draw_map(package)), encoding="utf-8")
    elif given.map:
        print(draw_map(package), end="")
    else:
        print("\n".join([*figures(package), *(floors_lines(package) if given.floors else ())]))


def _module(path: Path, folder: Path) -> Module:
    parts = list(path.relative_to(folder).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return Module(".".join(parts), path, path.read_text(encoding="utf-8"))


def _is_folder(module: Module) -> bool:
    return module.own_name == "__init__" and module.name != "__init__"


def _room_lines(room: str, purpose: str, imports: list[str]) -> Iterator[str]:
    width = MAP_WIDTH - 18
    told = textwrap.wrap(purpose, width)
    if imports:
        told += textwrap.wrap(f"-> {' '.join(imports)}", width, subsequent_indent="   ")
    for number, line in enumerate(told):
        yield f"│ {'' if number else room:<13} {line:<{width}} │"


def _purpose(module: Module) -> str:
    return (ast.get_docstring(module.tree) or "").splitlines()[0].replace("``", "").rstrip(".")


def _doubled(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in found:
        places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def _components(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Group files that reach one another, each group after those that it imports."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])): len(reached[name])
        for name in graph
    }
    return sorted(groups, key=lambda group: groups[group])


def _reached(graph: Mapping[str, Iterable[str]], name: str) -> set[str]:
    """Give a file, and all that importing it may import."""
    found, pending = {name}, [name]
    while pending:
        new = {*graph[pending.pop()]} - found
        found |= new
        pending += new
    return found


if __name__ == "__main__":
    main()
