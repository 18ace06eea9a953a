"""Command lines of pytest, ini files and markers: no traceback, and no gate passes without rows."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.plugin.settings import KEYWORDS, WITH_FLAG, WITH_INI, Setting
from tests.fuzz.inputs import odd_texts, of_runs
from tests.plugin_runs import run, text_of

pytestmark = pytest.mark.torch

# Flags that start other processes: ranks and instruction counting.
ELSEWHERE = ("nproc", "metric", "measure_all")
FLAGS = [setting for setting in WITH_FLAG if setting.name not in ELSEWHERE]
INI_NAMES = [setting.dest for setting in WITH_INI if setting.name not in ELSEWHERE]
GOOD = ["1", "5%", "auto", "fake", "2x4", "cpu", "on", "add*", "expected.csv"]
# Without text that pytest itself parses.
values = some.one_of(some.sampled_from(GOOD), odd_texts).filter(lambda text: "\0" not in text)
TEST = """
import pytest

class Broken:
    def _refuse(self, *given):
        raise RuntimeError("broken")

    __repr__ = __str__ = __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__ = __eq__ = _refuse

{marker}
def test_nothing(): pass
"""


written_values = some.one_of(
    values.map(repr),
    some.integers().map(repr),
    some.sampled_from(["Broken()", "[Broken()]", "None", "float('nan')", "()", "2.7", "True", "{}"]),
)
flags = some.lists(some.tuples(some.sampled_from(FLAGS), values), max_size=3)
ini_lines = some.builds("{} = {}".format, some.sampled_from(INI_NAMES), values.filter(str.isprintable))
markers = some.builds("@pytest.mark.dtdispatch({}={})".format, some.sampled_from(KEYWORDS), written_values)
nothing = some.just("")


@of_runs
@given(
    sources=some.one_of(
        some.tuples(flags, nothing, nothing),
        some.tuples(some.just([]), ini_lines, nothing),
        some.tuples(some.just([]), nothing, markers),
    )
)
def test_run_has_no_traceback(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    sources: tuple[list[tuple[Setting, str]], str, str],
) -> None:
    # The test file is rewritten in each run: cached bytecode would be reused instead.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    chosen_flags, ini_line, marker = sources
    pytester.path.joinpath("pytest.ini").write_text(f"[pytest]\n{ini_line}\n", encoding="utf-8")
    pytester.makepyfile(test_fuzzed=TEST.format(marker=marker))
    words = [f"{one.flag}={value}" if one.metavar else one.flag for one, value in chosen_flags]
    result = run(pytester, "--dtdispatch", *words)
    text = text_of(result)
    for frame in ("pytest_dtdispatch/", "INTERNALERROR", "Traceback"):
        assert frame not in text, text
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR), text
    if any(word.startswith(("--dtdispatch-max=", "--dtdispatch-expected=")) for word in words):
        assert result.ret != pytest.ExitCode.OK, text
