"""Modules by layout of the repository: from the worktree of a side, foreign, or irrelevant."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from pytest_dtdispatch.ab.checkout import Checkout, InstalledFinder, module_files

WORKTREE = (
    *("pyproject.toml", "flat/__init__.py", "single.py", "src/lib/__init__.py", "python/deep/ops.py"),
    *("python/deep/__init__.py", "python/space/part/__init__.py", "tests/conftest.py", "tests/json.py"),
    *("libs/one/pyproject.toml", "libs/one/mono/__init__.py", "third_party/numpy/__init__.py"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a worktree beside the checkout in which the run was started."""
    for name in WORKTREE:
        touch(tmp_path / "worktree" / name)
    top = str(tmp_path / "worktree")
    return Checkout(top, (str(tmp_path / "repository"),), (top,), str(tmp_path / "installed"))


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("name", "file", "is_foreign"),
    [
        ("flat", "worktree/flat/__init__.py", False),
        ("lib", "worktree/src/lib/__init__.py", False),
        ("flat", "installed/flat/__init__.py", False),
        ("flat", "site/flat/__init__.py", True),
        ("flat.sub.ops", "site/flat/sub/ops.py", True),
        ("flat._ext", "site/flat/_ext.cpython-311-x86_64-linux-gnu.so", True),
        ("single", "site/single.py", True),
        ("lib", "site/lib/__init__.py", True),
        ("deep.ops", "site/deep/ops.py", True),  # python/ installed, or in another clone
        ("deep.ops", "clone/python/deep/ops.py", True),
        ("deep.ops", "repository/python/deep/ops.py", True),  # editable, .pth, PYTHONPATH, conftest
        ("mono", "site/mono/__init__.py", True),
        ("space.part", "site/space/part/__init__.py", True),
        ("space.other", "site/space/other/__init__.py", False),  # in another distribution
        ("numpy", "site/numpy/__init__.py", False),  # a copy that is never imported
        ("json", "stdlib/json/__init__.py", False),
        ("conftest", "site/conftest.py", False),
        ("conftest", "repository/tests/conftest.py", True),
        ("test_step", "repository/tests/test_step.py", True),
        ("torch", "site/torch/__init__.py", False),
    ],
)
def test_module_is_foreign_by_layout(
    checkout: Checkout, tmp_path: Path, name: str, file: str, is_foreign: bool
) -> None:
    assert checkout.is_foreign(name, str(tmp_path / file)) is is_foreign


def test_linked_package_is_foreign_by_its_target(checkout: Checkout, tmp_path: Path) -> None:
    touch(tmp_path / "repository/elsewhere/linked/__init__.py")
    touch(tmp_path / "worktree/elsewhere/own/__init__.py")
    (site := tmp_path / "site").mkdir()
    (site / "linked").symlink_to(tmp_path / "repository/elsewhere/linked")
    (site / "own").symlink_to(tmp_path / "worktree/elsewhere/own")
    assert checkout.is_foreign("linked", str(site / "linked/__init__.py"))
    assert not checkout.is_foreign("own", str(site / "own/__init__.py"))


def test_environment_in_the_repository_is_not_its_code(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "repository/.venv"))
    site = tmp_path / "repository/.venv/lib/python3/site-packages"
    assert not checkout.is_foreign("torch", str(site / "torch/__init__.py"))
    assert checkout.is_foreign("flat", str(site / "flat/__init__.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # an environment around the repository
    assert checkout.is_foreign("torch", str(tmp_path / "repository/torch/__init__.py"))


def test_refusal_names_module_and_both_files(checkout: Checkout, tmp_path: Path) -> None:
    modules = {"deep": "site/deep/__init__.py", "deep.ops": "site/deep/ops.py", "torch": "site/torch/a.py"}
    files = {name: str(tmp_path / file) for name, file in modules.items()}
    refusal = Checkout(checkout.top, checkout.others).refusal(files)
    for text in ("imports deep from ", files["deep"], f"{checkout.top}/python/deep/__init__.py", "--install"):
        assert text in refusal
    assert checkout.refusal({"torch": files["torch"]}) == ""


def test_import_folders_are_those_of_the_checkout(checkout: Checkout, tmp_path: Path) -> None:
    modules = {"deep.ops": "worktree/python/deep/ops.py", "a": "worktree/a/__init__.py", "b": "site/b.py"}
    found = checkout.import_folders({name: str(tmp_path / file) for name, file in modules.items()})
    assert found == [checkout.top, f"{checkout.top}/python"]


def test_lazy_modules_have_no_file() -> None:
    class Lazy(ModuleType):
        __file__ = "_lazy.py"

    relative, real = ModuleType("relative"), ModuleType("real")
    relative.__file__, real.__file__ = "relative.py", "/x/real.py"
    modules = {"lazy": Lazy("lazy"), "relative": relative, "real": real, "__main__": real}
    assert module_files(modules) == {"real": "/x/real.py"}


class Hook:
    """Import hook that finds modules by full name in one folder, like scikit-build-core."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self._folder.joinpath(*name.split(".")[:-1]))])


def test_installed_package_takes_precedence_over_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("installed", "path"):
        touch(tmp_path / folder / "dtd_won/__init__.py")
        touch(tmp_path / folder / "dtd_won/ops.py")
    touch(tmp_path / "installed/dtd_space/one.py")
    touch(tmp_path / "path/dtd_space/two.py")
    installed = str(tmp_path / "installed")
    monkeypatch.setattr(sys, "path", [installed, str(tmp_path / "path"), *sys.path])
    hooks = [InstalledFinder(installed), Hook(tmp_path / "path")]
    monkeypatch.setattr(sys, "meta_path", [hooks[0], *sys.meta_path])
    try:
        assert importlib.import_module("dtd_space.one")
        assert importlib.import_module("dtd_space.two")
        monkeypatch.setattr(sys, "meta_path", [*hooks, *sys.meta_path])
        for name in ("dtd_won", "dtd_won.ops"):
            assert str(importlib.import_module(name).__file__).startswith(f"{installed}/")
    finally:
        for name in [name for name in sys.modules if name.startswith("dtd_")]:
            del sys.modules[name]
