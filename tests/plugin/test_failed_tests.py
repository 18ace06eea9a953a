"""The JSON of a run lists failed tests and files, whatever the outcome of its gates."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from tests.plugin_runs import run
from tests.probes import needs_plugin

pytestmark = pytest.mark.torch

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


def alone(pytester: pytest.Pytester, *flags: str) -> pytest.RunResult:
    return run(pytester, *flags)


def with_workers(pytester: pytest.Pytester, *flags: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*flags, "-n2", "--dtdispatch-metric=counts")


@pytest.mark.parametrize(
    "run_by", [alone, pytest.param(with_workers, marks=[pytest.mark.long, needs_plugin("xdist")])]
)
def test_json_lists_each_failure(pytester: pytest.Pytester, run_by: Callable[..., pytest.RunResult]) -> None:
    pytester.makepyfile(test_it=TESTS, test_bad="import no_such_module")
    files = ("--dtdispatch-export=json:-", "--junitxml=run.xml")
    result = run_by(pytester, "--dtdispatch", *files, "--continue-on-collection-errors")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    data = json.loads(result.outlines[-1])
    found = {(each["test"], each["phase"], each["reason"]) for each in data["failed_tests"]}
    assert {one for one in found if one[1] != "collect"} == FAILED
    assert [(test, "no_such_module" in why) for test, phase, why in found if phase == "collect"] == [
        ("test_bad.py", True)
    ]
    properties = {one.get("name"): one.get("value") for one in ET.parse("run.xml").getroot().iter("property")}
    assert properties["dtdispatch.outcome"] == "nothing was measured; 5 tests failed"
