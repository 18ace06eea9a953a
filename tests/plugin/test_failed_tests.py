"""The JSON of a run lists failed tests and files, whatever the outcome of its gates."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.probes import needs_plugin

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no file")

@pytest.fixture
def late():
    yield
    raise OSError("no end")

def test_setup(broken): pass

def test_teardown(late): pass

def test_call():
    assert 1 == 2

@pytest.mark.xfail(strict=True)
def test_strict(): pass

@pytest.mark.xfail
def test_known():
    assert False

@pytest.mark.skip
def test_skipped(): pass

def test_good(): pass
"""
FAILED = {
    ("test_it.py::test_setup", "setup", "OSError: no file"),
    ("test_it.py::test_teardown", "teardown", "OSError: no end"),
    ("test_it.py::test_call", "call", "assert 1 == 2"),
    ("test_it.py::test_strict", "call", "[XPASS(strict)]"),
}


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("-n2", "--dtdispatch-metric=counts"), marks=needs_plugin("xdist"))]
)
def test_json_lists_each_failure(pytester: pytest.Pytester, flags: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS, test_bad="import no_such_module")
    collects = "--continue-on-collection-errors"
    result = pytester.runpytest_subprocess(
        "--dtdispatch", "--dtdispatch-export=json:-", "--junitxml=run.xml", collects, *flags
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    data = json.loads(result.outlines[-1])
    found = {(each["test"], each["phase"], each["reason"]) for each in data["failed_tests"]}
    assert {one for one in found if one[1] != "collect"} == FAILED
    assert [(test, "no_such_module" in why) for test, phase, why in found if phase == "collect"] == [
        ("test_bad.py", True)
    ]
    properties = {one.get("name"): one.get("value") for one in ET.parse("run.xml").getroot().iter("property")}
    assert properties["dtdispatch.outcome"] == "nothing was measured; 5 tests failed"


@pytest.mark.torch
def test_passing_run_lists_none(pytester: pytest.Pytester) -> None:
    from tests.plugin_runs import run

    source = "def test_count(dtdispatch): dtdispatch.steps(lambda: None)"
    pytester.makepyfile(source)
    result = run(pytester, "--dtdispatch", "--dtdispatch-export=json:-", "--dtdispatch-max=misses=0")
    data = json.loads(result.outlines[-1])
    assert (result.ret, data["outcome"], data["failed_tests"]) == (0, "passed", [])
