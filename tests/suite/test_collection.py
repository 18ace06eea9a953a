"""Slow files of the built-in suite are collected only if named explicitly."""

from __future__ import annotations

import pytest

from tests.plugin_runs import run

pytestmark = pytest.mark.torch
SUITE, MODES = "pytest_dtdispatch.suite", ("training", "inference")


@pytest.mark.parametrize(
    ("flags", "present", "absent"),
    [
        ((), ["test_ops.py::test_add[4]"], ["test_atlas", "test_compile"]),
        (("-k", "test"), ["test_ops.py::test_add[4]"], ["test_atlas", "test_compile"]),
        (
            ("-m", "compile"),
            [
                *(f"test_aotdispatcher[{mode}-{kind}subclass]" for mode in MODES for kind in ("", "no")),
                *(f"test_embedding[fake_tensor_cache_{state}]" for state in ("on", "off")),
            ],
            ["test_add", "test_atlas"],
        ),
        (("-m", "compile", "-k", "aotdispatcher"), ["test_aotdispatcher"], ["test_embedding"]),
        (("-m", "atlas"), ["test_atlas.py::test_op[add.Tensor]"], ["test_add"]),
    ],
    ids=" ".join,
)
def test_suite_flags_select_collected_tests(
    pytester: pytest.Pytester, flags: tuple[str, ...], present: list[str], absent: list[str]
) -> None:
    result = run(pytester, "--collect-only", "-q", "--strict-markers", "--pyargs", SUITE, *flags)
    assert result.ret == pytest.ExitCode.OK
    text = result.stdout.str()
    assert [name for name in present if name not in text] == []
    assert [name for name in absent if name in text] == []
