"""What takes minutes is part of the built-in suite where it is named, and nowhere else."""

from __future__ import annotations

import pytest

from tests.plugin_runs import run

pytestmark = pytest.mark.torch
SUITE = ("--pyargs", "pytest_dtdispatch.suite")


def collected(pytester: pytest.Pytester, *args: str) -> str:
    result = run(pytester, "--collect-only", "-q", "--strict-markers", *SUITE, *args)
    assert result.ret == pytest.ExitCode.OK
    return result.stdout.str()


def test_a_plain_run_leaves_the_atlas_and_compiles_out(pytester: pytest.Pytester) -> None:
    text = collected(pytester)
    assert "test_ops.py::test_add[4]" in text
    assert "test_atlas" not in text
    assert "test_compile" not in text


def test_the_marker_selects_compiles_alone(pytester: pytest.Pytester) -> None:
    text = collected(pytester, "-m", "compile")
    for training in ("training", "inference"):
        for subclass in ("subclass", "nosubclass"):
            assert f"test_compile.py::test_aotdispatcher[{training}-{subclass}]" in text
    assert "test_compile.py::test_embedding[fake_tensor_cache_on]" in text
    assert "test_add" not in text
    assert "test_atlas" not in text


def test_the_marker_selects_the_atlas_alone(pytester: pytest.Pytester) -> None:
    text = collected(pytester, "-m", "atlas")
    assert "test_atlas.py::test_op[add.Tensor]" in text
    assert "test_add" not in text


def test_a_name_selects_among_what_is_collected_alone(pytester: pytest.Pytester) -> None:
    text = collected(pytester, "-m", "compile", "-k", "aotdispatcher and not nosubclass")
    assert text.count("test_compile.py::") == 2
    text = collected(pytester, "-k", "test")
    assert "test_compile" not in text
    assert "test_atlas" not in text
