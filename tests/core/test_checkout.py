"""Modules by layout of a repository: from the worktree of a side, from elsewhere, or of no concern."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_dtdispatch.core.checkout import Checkout, InstalledFinder, module_files

WORKTREE = (
    *("pyproject.toml", "flat/__init__.py", "single.py", "src/lib/__init__.py", "python/deep/ops.py"),
    *("python/deep/__init__.py", "python/space/part/__init__.py", "tests/conftest.py", "tests/json.py"),
    *("libs/one/pyproject.toml", "libs/one/mono/__init__.py", "third_party/numpy/__init__.py"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A worktree beside the checkout that the run was started in."""
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
        ("deep.ops", "site/deep/ops.py", True),  # python/ installed, or of another clone
        ("deep.ops", "clone/python/deep/ops.py", True),
        ("deep.ops", "repository/python/deep/ops.py", True),  # editable, .pth, PYTHONPATH, conftest
        ("mono", "site/mono/__init__.py", True),
        ("space.part", "site/space/part/__init__.py", True),
        ("space.other", "site/space/other/__init__.py", False),  # of another distribution
        ("numpy", "site/numpy/__init__.py", False),  # a copy that nothing imports from
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


def test_environment_in_the_repository_is_no_code_of_it(
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
    assert "--install" not in checkout.refusal(files)  # it was tried
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


def test_installed_package_wins_over_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "installed/dtd_won/__init__.py")
    touch(tmp_path / "path/dtd_won/__init__.py")
    touch(tmp_path / "installed/dtd_space/one.py")
    touch(tmp_path / "path/dtd_space/two.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "path"), str(tmp_path / "installed"), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [InstalledFinder(str(tmp_path / "installed")), *sys.meta_path])
    try:
        won = importlib.import_module("dtd_won")
        assert won.__file__ == str(tmp_path / "installed/dtd_won/__init__.py")
        assert importlib.import_module("dtd_space.one")
        assert importlib.import_module("dtd_space.two")
    finally:
        for name in [name for name in sys.modules if name.startswith("dtd_")]:
            del sys.modules[name]
