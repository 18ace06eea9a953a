"""A test that runs again, as pytest-rerunfailures lets it: its last attempt counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin_runs import IMPORTS, MEASURED, run, text_of

pytestmark = pytest.mark.torch

FLAKY = (
    IMPORTS
    + """
attempts = []

def test_flaky(dtdispatch, device_mesh):
    attempts.append(1)
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        if len(attempts) == 1:
            a * a
    assert len(attempts) == 2
"""
)
# The protocol as pytest-rerunfailures runs it: reports of the first attempt are kept back.
RERUNS = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if any(report.failed for report in runtestprotocol(item, nextitem=nextitem, log=False)):
        item._initrequest()
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


def test_the_last_attempt_counts(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(RERUNS)
    pytester.makepyfile(FLAKY)
    flags = (*MEASURED, "--dtdispatch-rounds=8", "--dtdispatch-export=csv:rows.csv", "--benchmark-quiet")
    run(pytester, *flags, "--benchmark-save=one").assert_outcomes(passed=1)
    [saved] = Path(".benchmarks").rglob("*.json")
    names = [row["fullname"].partition("::")[2] for row in json.loads(saved.read_text())["benchmarks"]]
    add = "test_flaky::add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"
    assert sorted(names) == [f"{add}::{state}" for state in ("hit", "local", "miss")]
    assert "mul" not in Path("rows.csv").read_text()
    gate = ("--benchmark-compare=0001", "--dtdispatch-fail=median:10000%")
    result = run(pytester, *flags, *gate)
    assert result.ret == pytest.ExitCode.OK
    assert "gate: passed" in text_of(result)
    assert "mul.Tensor" not in text_of(result)
