"""Modules of a process that belong to a repository, and checks that they come from one checkout of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_dtdispatch.core.text import ask

PROJECTS = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True)
class Checkout:
    """The worktree of one side of an A/B run. All paths are absolute, without links.

    Args:
        top: folder of the worktree.
        others: other worktrees of the repository.
        import_path: folders of the worktree that modules are imported from.
        installed: folder into which its commit was installed; empty if it was not.
        commit: full id of its commit.
        project: counterpart of the folder in which the run was started.
    """

    top: str
    others: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()
    installed: str = ""
    commit: str = ""
    project: str = ""

    def import_folders(self, modules: Mapping[str, str]) -> list[str]:
        """Return the folders of the checkout from which these modules (name: file) were imported."""
        found = ((name, Path(os.path.realpath(file))) for name, file in modules.items())
        return sorted({str(_root(name, file)) for name, file in found if self._is_own(file)})

    def refusal(self, modules: Mapping[str, str]) -> str:
        """Return an error for the first module of the repository from elsewhere; empty if there is none."""
        for name in sorted(modules):
            if self.is_foreign(name, modules[name]):
                file = Path(modules[name])
                tail = file.relative_to(_root(name, file)).as_posix()
                expected = next(Path(self.top).rglob(tail), Path(self.top))
                remedy = "--install each commit, or compare environments: --base PYTHON --head PYTHON"
                return f"imports {name} from {file}, not from {expected}: {remedy}"
        return ""

    def is_foreign(self, name: str, file: str) -> bool:
        """Return whether a module belongs to the repository but was not imported from this checkout."""
        real = Path(os.path.realpath(file))
        if self._is_own(real):
            return False
        if any(real.is_relative_to(each) and not _is_of_interpreter(real, each) for each in self.others):
            return True
        last = name.rpartition(".")[2]
        if name.partition(".")[0] in sys.stdlib_module_names or last == "conftest" or last[:5] == "test_":
            return False  # tests are identified only by path
        return any(_has_module(folder, name) for folder in self._package_folders)

    def _is_own(self, file: Path) -> bool:
        return any(file.is_relative_to(each) for each in (self.top, self.installed) if each)

    @cached_property
    def _package_folders(self) -> tuple[Path, ...]:
        """Folders with packages of the repository, on the import path or not."""
        patterns = [depth + name for name in PROJECTS for depth in ("", "*/", "*/*/")]
        tops = {path.parent for pattern in patterns for path in Path(self.top).glob(pattern)}
        sources = (top / name for top in {Path(self.top), *tops} for name in ("", "src", "python", "lib"))
        return (*map(Path, self.import_path), *sources)


def module_files(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """Return the files of loaded modules; the ``__file__`` of a lazy module may be any value."""
    files = {name: ask(lambda each: vars(each)["__file__"], each, "") for name, each in modules.items()}
    named = {name: file for name, file in files.items() if isinstance(file, str) and name != "__main__"}
    return {name: file for name, file in named.items() if Path(file).is_absolute()}


class InstalledFinder:
    """Finder that imports packages from a folder, with precedence over other hooks and paths."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module, except namespace packages, which may have parts elsewhere."""
        folders = [self._folder] if path is None else path
        below = [each for each in folders if Path(each).is_relative_to(self._folder)]
        spec = PathFinder.find_spec(name, below, target)
        return spec if spec and spec.loader else None


def _root(name: str, file: Path) -> Path:
    """Return the folder of the import path in which a module was found.

    Example:
        >>> _root("a.b", Path("/x/a/b.py")).as_posix(), _root("a.b", Path("/x/a/b/__init__.py")).as_posix()
        ('/x', '/x')
    """
    depth = name.count(".") + (file.stem == "__init__")
    return [*file.parents, file.parent][min(depth, len(file.parents) - 1)]


def _has_module(folder: Path, name: str) -> bool:
    """Return whether a folder has the first regular package or module of a dotted name."""
    parts = name.split(".")
    paths = (folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1))
    return any((path / "__init__.py").is_file() or path.with_suffix(".py").is_file() for path in paths)


def _is_of_interpreter(file: Path, folder: str) -> bool:
    """Return whether a file belongs to a Python environment inside a folder."""
    prefixes = [Path(os.path.realpath(prefix)) for prefix in (sys.prefix, sys.base_prefix)]
    return any(prefix.is_relative_to(folder) and file.is_relative_to(prefix) for prefix in prefixes)
