"""Real A/B runs of two commits of a package in ``python/``: the head has one more redistribution."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from tests.ci.pull_requests import commit, git

pytestmark = [pytest.mark.torch, pytest.mark.long]
FILES = {
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "dtd-layers"
        version = "1"
        [tool.setuptools.packages.find]
        where = ["python"]
        """,
    "python/dtd_layers/__init__.py": """
        def step(x):
            return x.sigmoid()
        """,
    "tests/test_step.py": """
        import torch
        from torch.distributed.tensor import Shard, distribute_tensor
        from dtd_layers import step

        def test_step(dtdispatch, device_mesh):
            x = distribute_tensor(torch.rand(16, 8), device_mesh, [Shard(0)])
            dtdispatch.steps(lambda: step(x))
        """,
}
HEAD = """
from torch.distributed.tensor import Replicate
def step(x):
    return x.redistribute(placements=[Replicate()]).sigmoid()
"""
COPIED, CHECKOUT = "site", "repository/python"


@pytest.mark.parametrize(
    ("path", "conftest", "flags", "status"),
    [
        pytest.param(CHECKOUT, "", [], 1, marks=pytest.mark.sweep),
        (COPIED, "", [], 2),
        ("", CHECKOUT, ["--install"], 1),
    ],
    ids=["PYTHONPATH", "copy", "conftest and installed"],
)
def test_head_is_measured_or_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
    conftest: str,
    flags: Sequence[str],
    status: int,
) -> None:
    repository = tmp_path / "repository"
    for name, text in FILES.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("\n".join(line[8:] for line in text.splitlines()))
    if conftest:
        (repository / "conftest.py").write_text(
            f"import sys; sys.path.insert(0, {str(tmp_path / conftest)!r})"
        )
    git(repository, "init", "--quiet")
    commit(repository, "old")
    (repository / "python/dtd_layers/__init__.py").write_text(HEAD)
    commit(repository, "new")
    shutil.copytree(repository / "python", tmp_path / COPIED)
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([*filter(None, [path and str(tmp_path / path)]), source])
    )
    monkeypatch.chdir(repository)
    revisions = ["--base-rev", "HEAD~1", "--head-rev", "HEAD"]
    assert main(["ab", "--metric", "counts", *revisions, *flags, "--", "tests"]) == status
    out, err = capsys.readouterr()
    if status == 1:
        folder = "{}-installed" if flags else "{}/python"
        assert all(f"/{folder.format(side)}" in out for side in ("base", "head"))
        assert "2 regressed" in out
    else:
        assert "imports dtd_layers from " in err
