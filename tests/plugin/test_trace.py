"""The steps of a run as a trace."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.plugin_runs import IMPORTS, MEASURED, import_compilers, run, text_of
from tests.trace_format import Event, read_trace

pytestmark = pytest.mark.torch

import_compilers()

TESTS = f"""{IMPORTS}
class Scaled(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.weight = torch.nn.Parameter(sharded(mesh))

    def forward(self, x):
        return (x * self.weight).full_tensor()

def training(mesh):
    net = Scaled(mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(sharded(mesh)).sum().backward()
        optimizer.step()

    return step

def test_train(dtdispatch, device_mesh):
    dtdispatch.steps(training(device_mesh), warmup=1, steps=2)

def test_two(dtdispatch, device_mesh):
    dtdispatch.steps(training(device_mesh), warmup=0, steps=1, name="first")
    dtdispatch.steps(training(device_mesh), warmup=0, steps=1, name="second")

def test_call(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.call(lambda: a + a, name="add")
"""
TRACE = (*MEASURED, "--dtdispatch-trace=trace.json")


@pytest.fixture(autouse=True)
def tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_traced=TESTS)


def events_of(pytester: pytest.Pytester) -> list[Event]:
    return read_trace((pytester.path / "trace.json").read_text())


def test_every_step_of_a_run_is_in_the_trace(pytester: pytest.Pytester) -> None:
    result = run(pytester, *TRACE)
    result.assert_outcomes(passed=3)
    events = events_of(pytester)
    path = pytester.path / "trace.json"
    result.stdout.fnmatch_lines([f"{len(events):,} spans written to {path}"])
    steps = [event for event in events if event["cat"] == "step"]
    assert [(event["pid"], event["name"]) for event in steps] == [
        (1, "step 1 (warm-up)"),
        (1, "step 1"),
        (1, "step 2"),
        (2, "step 1 of first"),
        (2, "step 1 of second"),
    ]
    for kind, total in {"miss": "misses", "redistribution": "redistributions", "wrap": "wraps"}.items():
        found = [event for event in events if event["cat"] == kind]
        assert len(found) == sum(event["args"][total] for event in steps) > 0
    whole = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in whole if event["name"] == "process_name"]
    assert names == ["test_traced.py::test_train", "test_traced.py::test_two"]


def test_spans_tell_the_line_the_module_and_the_phase(pytester: pytest.Pytester) -> None:
    run(pytester, *TRACE, "-k", "test_train").assert_outcomes(passed=1)
    written = (pytester.path / "test_traced.py").read_text().splitlines()
    line = next(number for number, text in enumerate(written, 1) if "full_tensor" in text)
    moved = [event for event in events_of(pytester) if event["cat"] == "redistribution"]
    at = {"at": f"test_traced.py:{line}", "module": "Scaled"}
    for phase in ("forward", "backward"):
        assert any({**at, "phase": phase}.items() <= event["args"].items() for event in moved), phase


def test_counted_regions_are_steps_of_the_trace_too(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--dtdispatch-all", "--dtdispatch-metric=counts", *TRACE[-1:], "-k", "test_call")
    result.assert_outcomes(passed=1)
    assert Counter(event["name"] for event in events_of(pytester))["step 1 of add"] == 1


def test_a_run_that_counts_no_steps_writes_no_trace_and_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, *TRACE, "-k", "test_call")
    path = pytester.path / "trace.json"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"failed: {path} was not written: no steps were counted"])
    assert "1 file not written" in result.outlines[-1]
    assert not path.exists()
    assert "Traceback" not in text_of(result)


def test_a_trace_replaces_an_earlier_one(pytester: pytest.Pytester) -> None:
    for _ in range(2):
        run(pytester, *TRACE, "-k", "test_train").assert_outcomes(passed=1)
    assert events_of(pytester)


def test_a_step_that_fails_leaves_the_spans_of_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_failing="def test_failing(dtdispatch, device_mesh):\n    dtdispatch.steps(lambda: 1 / 0)\n"
    )
    result = run(pytester, *TRACE, "-k", "test_train or test_failing")
    result.assert_outcomes(passed=1, failed=1)
    assert len([event for event in events_of(pytester) if event["cat"] == "step"]) == 3
    assert "pytest_dtdispatch/" not in text_of(result)
