"""Command lines of pytest, ini files and markers: no traceback of ours, and no gate passes on nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.plugin.settings import KEYWORDS, WITH_FLAG, WITH_INI, Setting
from tests.fuzz.inputs import TRIED, odd_texts, of_runs
from tests.plugin_runs import run, text_of

pytestmark = pytest.mark.torch

# Ranks and a machine that counts instructions are other processes.
ELSEWHERE = ("nproc", "metric", "measure_all")
FLAGS = [setting for setting in WITH_FLAG if setting.name not in ELSEWHERE]
INI_NAMES = [setting.dest for setting in WITH_INI if setting.name not in ELSEWHERE]
GOOD = ["1", "5%", "auto", "fake", "2x4", "cpu", "on", "add*", "expected.csv"]
# Not what pytest itself takes apart.
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


def ends_well(result: pytest.RunResult, gates: Sequence[str]) -> None:
    text = text_of(result)
    for frame in ("pytest_dtdispatch/", "INTERNALERROR", "Traceback"):
        assert frame not in text, text
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR), text
    assert not gates or result.ret != pytest.ExitCode.OK, text


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose test is written anew for each run: a compiled one would be taken for it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return pytester


@of_runs
@given(given_flags=some.lists(some.tuples(some.sampled_from(FLAGS), values), max_size=3))
def test_flags(folder: pytest.Pytester, given_flags: list[tuple[Setting, str]]) -> None:
    TRIED["runs of pytest"] += 1
    folder.makepyfile(test_fuzzed=TEST.format(marker=""))
    words = ["--dtdispatch"]
    for setting, value in given_flags:
        words.append(f"{setting.flag}={value}" if setting.metavar else setting.flag)
    gates = [
        word for word in words if word.partition("=")[0] in ("--dtdispatch-max", "--dtdispatch-expected")
    ]
    ends_well(run(folder, *words), gates)


@of_runs
@given(name=some.sampled_from(INI_NAMES), value=values.filter(str.isprintable))
def test_an_ini_file(folder: pytest.Pytester, name: str, value: str) -> None:
    TRIED["runs of pytest"] += 1
    folder.makepyfile(test_fuzzed=TEST.format(marker=""))
    folder.path.joinpath("pytest.ini").write_text(f"[pytest]\n{name} = {value}\n", encoding="utf-8")
    ends_well(run(folder, "--dtdispatch"), [])


written_values = some.one_of(
    values.map(repr),
    some.integers().map(repr),
    some.sampled_from(["Broken()", "[Broken()]", "None", "float('nan')", "()", "2.7", "True", "{}"]),
)


@of_runs
@given(keyword=some.sampled_from(KEYWORDS), value=written_values)
def test_a_marker(folder: pytest.Pytester, keyword: str, value: str) -> None:
    TRIED["runs of pytest"] += 1
    folder.path.joinpath("pytest.ini").write_text("[pytest]\n")
    folder.makepyfile(test_fuzzed=TEST.format(marker=f"@pytest.mark.dtdispatch({keyword}={value})"))
    ends_well(run(folder, "--dtdispatch"), [])
