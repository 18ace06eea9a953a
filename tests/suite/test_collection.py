"""What takes minutes is part of the built-in suite where it is named, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def collected(tmp_path: Path, *args: str) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "--strict-markers",
        "-pno:cacheprovider",
    ]
    process = subprocess.run(
        [*command, "--pyargs", "pytest_dtdispatch.suite", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == pytest.ExitCode.OK, process.stdout + process.stderr
    return process.stdout


def test_a_plain_run_leaves_the_atlas_and_compiles_out(tmp_path: Path) -> None:
    text = collected(tmp_path)
    assert "test_add.py::test_add[4]" in text
    assert "test_atlas" not in text
    assert "test_compile" not in text


def test_the_marker_selects_compiles_alone(tmp_path: Path) -> None:
    text = collected(tmp_path, "-m", "compile")
    for training in ("training", "inference"):
        for subclass in ("subclass", "nosubclass"):
            assert f"test_compile.py::test_aotdispatcher[{training}-{subclass}]" in text
    assert "test_compile.py::test_embedding" in text
    assert "test_add" not in text
    assert "test_atlas" not in text


def test_the_marker_selects_the_atlas_alone(tmp_path: Path) -> None:
    text = collected(tmp_path, "-m", "atlas")
    assert "test_atlas.py::test_op[add.Tensor]" in text
    assert "test_add" not in text


def test_an_op_of_the_atlas_is_measured_and_one_that_torch_refuses_is_skipped(tmp_path: Path) -> None:
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--dtdispatch", "--dtdispatch-rounds=2", "-pno:cacheprovider"),
            *("--pyargs", "pytest_dtdispatch.suite", "-m", "atlas", "-rs", "--benchmark-quiet"),
            *("-k", "test_op and (atan2.default or _upsample_nearest_exact1d_backward.grad_input)"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == pytest.ExitCode.OK, process.stdout
    assert "atan2.default(f32[8,8]S0, f32[8,8]S0)@4" in process.stdout
    assert "torch does not support it: RuntimeError: " in process.stdout
