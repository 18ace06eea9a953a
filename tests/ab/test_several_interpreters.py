"""``dtdispatch matrix`` with real interpreters: two environments, one of which lacks an op."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]
TESTS = """
import sys
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def sharded(mesh):
    return distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])

def test_steps(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.steps(lambda: a + a, name="step")

def test_new(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    if not sys.prefix.endswith("newer"):
        raise NotImplementedError("no such op")
    dtdispatch.steps(lambda: a * a, name="new")
"""


def test_two_environments_of_which_one_lacks_an_op(tmp_path: Path) -> None:
    pythons = []
    for name in ("older", "newer"):
        venv.create(tmp_path / name, symlinks=True)
        [own] = (tmp_path / name / "lib").glob("python*/site-packages")
        folders = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("src"))]
        (own / "shared.pth").write_text("\n".join(folders))
        pythons += ["--python", str(tmp_path / name / "bin" / "python")]
    (tmp_path / "test_it.py").write_text(TESTS)
    saved = tmp_path / "matrix.json"
    words = ["matrix", *pythons, "--metric", "counts", "--json", str(saved)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_dtdispatch", *words, "--", "test_it.py", "-p", "no:randomly"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "- in older: test_it.py::test_new: failed: NotImplementedError: no such op" in done.stdout
    verdicts = {one["row"]: one["verdict"] for one in json.loads(saved.read_text())["verdicts"]}
    assert verdicts["test_it.py::test_steps::step::calls_per_step"] == "passed"
    assert verdicts["test_it.py::test_new::new::calls_per_step"] == "new"
