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


@pytest.mark.parametrize(
    ("names", "count"),
    [("aotdispatcher", 4), ("test_aotdispatcher and not nosubclass", 2), ("embedding or placement", 5)],
)
def test_a_name_selects_compiles_too(pytester: pytest.Pytester, names: str, count: int) -> None:
    text = collected(pytester, "-k", names)
    assert text.count("test_compile.py::") == count
    assert f"\n{count}/" in text


@pytest.mark.parametrize("names", ["dispatch", "not embedding", "not (embedding or op)", "test"])
def test_a_name_that_is_of_another_test_or_negated_leaves_compiles_out(
    pytester: pytest.Pytester, names: str
) -> None:
    text = collected(pytester, "-k", names)
    assert "test_path" in text or "test_steps" in text
    assert "test_compile" not in text
    assert "test_atlas" not in text
