"""What is said of measuring that takes long: when, where, and how often."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_dtdispatch.plugin import waiting
from pytest_dtdispatch.plugin.waiting import CACHE_KEY, HINT, Waiting
from tests.plugin_runs import IMPORTS, measure, text_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SLOW = (
    "import time\n"
    + IMPORTS
    + """
def test_before():
    pass

def test_step(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    def step():
        time.sleep(0.05)
        return a + a
    dtdispatch.call(step)
"""
)
CAPTURED = (
    IMPORTS
    + """
def test_train(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        a * a
    with dtdispatch.capture():
        a - a
"""
)
HEAD = "dtdispatch: measuring test_train.py::test_train "
LONG = HEAD + "takes more than 0 s; --dtdispatch-rounds auto takes less"
LAST = HEAD + "took 13 s the last time; --dtdispatch-rounds auto takes less"


def said(result: pytest.RunResult) -> list[str]:
    return [line for line in text_of(result).splitlines() if line.startswith("dtdispatch: measuring ")]


@pytest.fixture
def everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 1e-6)


def remembered(path: Path) -> Path:
    return path / ".pytest_cache" / "v" / CACHE_KEY


# What is said of one test


@pytest.fixture
def lines() -> list[str]:
    return []


def test_a_call_is_foretold_where_it_may_take_long(lines: list[str]) -> None:
    one = Waiting("test_it.py::test_a", lines.append)
    one.begin_call("step", 13, 2.9)
    one.begin_call("step", 13, 7.2)
    assert lines == ["measuring 'step' of test_it.py::test_a may take 7 s: 13 calls as long as its first"]


def test_captures_of_unknown_length_are_told_of_once_they_are_long(lines: list[str]) -> None:
    one = Waiting("test_it.py::test_a", lines.append, hint=HINT)
    for _ in range(5):
        one.begin_capture()
        one.measured(1.25)
        assert len(lines) == (one.captured_s >= 3)
    assert lines == ["measuring test_it.py::test_a takes more than 3 s; --dtdispatch-rounds auto takes less"]


def test_captures_that_were_long_are_told_of_before_they_begin_and_no_more(lines: list[str]) -> None:
    one = Waiting("test_it.py::test_a", lines.append, last_s=13.4)
    one.begin_capture()
    assert lines == ["measuring test_it.py::test_a took 13 s the last time"]
    one.measured(13)
    one.begin_capture()
    assert len(lines) == 1


# In a run


@pytest.mark.parametrize("args", [(), ("-s",), ("-v",), ("--capture=sys",), ("-rA",)], ids=" ".join)
def test_a_slow_call_is_foretold_on_a_line_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 0.3)
    pytester.makepyfile(test_slow=SLOW)
    result = measure(pytester, *args)
    result.assert_outcomes(passed=2)
    [line] = said(result)
    says = r"'step' of test_slow\.py::test_step may take \d s: \d+ calls as long as its first"
    assert re.fullmatch(f"dtdispatch: measuring {says}", line)
    assert text_of(result).index(line) < text_of(result).index("= dtdispatch =")


def test_a_fast_call_is_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_slow=SLOW.replace("0.05", "0"))
    assert said(measure(pytester)) == []


@pytest.mark.usefixtures("everything_is_long")
@pytest.mark.parametrize("args", [("-q",), ("-qq",), ("-pno:terminal",)], ids=" ".join)
def test_nothing_is_said_where_less_is_to_be_said(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    pytester.makepyfile(test_slow=SLOW, test_train=CAPTURED)
    assert said(measure(pytester, *args)) == []


@pytest.mark.usefixtures("everything_is_long")
def test_the_output_of_a_test_is_still_its_own(pytester: pytest.Pytester) -> None:
    source = CAPTURED.replace("test_train(", "test_train(capfd, ") + (
        "    print('of the test')\n"
        "    with dtdispatch.capture():\n"
        "        a @ a\n"
        "    assert capfd.readouterr() == ('of the test\\n', '')\n"
    )
    pytester.makepyfile(test_train=source)
    result = measure(pytester)
    result.assert_outcomes(passed=1)
    assert said(result) == [LONG]


@pytest.mark.usefixtures("everything_is_long")
def test_scaling_is_foretold_as_a_whole(pytester: pytest.Pytester) -> None:
    source = (
        IMPORTS
        + """
def test_sizes(dtdispatch, device_mesh):
    def make(size):
        a = sharded(device_mesh, size, 8)
        return lambda: a + a
    dtdispatch.scaling(make, [8, 16], name="add")
"""
    )
    pytester.makepyfile(test_sizes=source)
    [line] = said(measure(pytester))
    assert re.search(r"'add' of .* may take \d+ s: \d+ calls as long as its first$", line)


@pytest.mark.usefixtures("everything_is_long")
def test_captures_of_a_test_are_told_of_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_train=CAPTURED)
    assert said(measure(pytester)) == [LONG]


@pytest.mark.usefixtures("everything_is_long")
def test_auto_is_not_offered_where_it_is_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_train=CAPTURED)
    assert said(measure(pytester, "--dtdispatch-rounds=auto")) == [LONG.partition(";")[0]]


@pytest.mark.usefixtures("everything_is_long")
def test_counting_is_not_long(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_train=CAPTURED)
    assert said(measure(pytester, "--dtdispatch-metric=counts")) == []


@pytest.mark.parametrize("how", ["--dtdispatch", "--dtdispatch-all"])
def test_what_a_capture_took_is_said_before_the_next_one(pytester: pytest.Pytester, how: str) -> None:
    source = CAPTURED if how == "--dtdispatch" else PLAIN
    pytester.makepyfile(test_train=source)
    file = remembered(pytester.path)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"test_train.py::test_train": 13.4}))
    [line] = said(measure(pytester, "-pcacheprovider", how))
    assert line == LAST
    assert json.loads(file.read_text()) == {}, "this time it was not long"


PLAIN = (
    IMPORTS
    + """
def test_train(device_mesh):
    a = sharded(device_mesh)
    a + a
"""
)


@pytest.mark.usefixtures("everything_is_long")
def test_what_a_capture_took_is_remembered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_train=CAPTURED)
    measure(pytester, "-pcacheprovider")
    [(test, seconds)] = json.loads(remembered(pytester.path).read_text()).items()
    assert test == "test_train.py::test_train"
    assert seconds >= 0
    [line] = said(measure(pytester, "-pcacheprovider"))
    assert "the last time" in line


@pytest.mark.usefixtures("everything_is_long")
@pytest.mark.parametrize("text", ["[]", "3", '{"test_train.py::test_train": "x"}', "{", '{"a": null}'])
def test_a_cache_that_holds_something_else_is_no_error(pytester: pytest.Pytester, text: str) -> None:
    pytester.makepyfile(test_train=CAPTURED)
    file = remembered(pytester.path)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    result = measure(pytester, "-pcacheprovider")
    result.assert_outcomes(passed=1)
    assert len(said(result)) == 1
