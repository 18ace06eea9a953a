"""Limits as a gate: a test cannot bypass them, and every file contains their verdict."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from textwrap import indent

import pytest

from pytest_dtdispatch.core.verdicts import CountChange
from tests.plugin_runs import (
    MEASURED,
    assert_reported_once,
    import_compilers,
    judge_source,
    judged,
    measure,
    measure_source,
    run,
    text_of,
)

pytestmark = pytest.mark.torch
import_compilers()

STEPS = """
import contextlib, threading, unittest
from pytest_dtdispatch.errors import GateError

def moving(dtdispatch, mesh, name="train"):
    a = sharded(mesh)
    dtdispatch.steps(lambda: a.full_tensor(), warmup=1, steps=2, name=name)

def steady(dtdispatch, mesh, name="good"):
    a = sharded(mesh)
    dtdispatch.steps(lambda: a + a, warmup=1, steps=2, name=name)

def broken(*args):
    raise ValueError

"""
CLEARED = """
with unittest.TestCase().assertRaises(AssertionError):
    moving(dtdispatch, device_mesh)
"""
SUPPRESSED = """
with contextlib.suppress(Exception):
    moving(dtdispatch, device_mesh)
"""
LIMIT = "--dtdispatch-max=redistributes=0"
RAISES = "with pytest.raises(ValueError):\n    "
STEADY = "steady(dtdispatch, device_mesh)\n"


def source_of(*bodies: str, marks: tuple[str, ...] = ()) -> str:
    """Return the source of one test for each body, with their shared definitions."""
    every = (
        f"{mark}\ndef test_{number}(dtdispatch, device_mesh, request):\n{indent(body.strip(), '    ')}\n\n"
        for number, (body, mark) in enumerate(zip(bodies, marks or [""] * len(bodies), strict=True))
    )
    return STEPS + "".join(every)


SWALLOWED = [
    SUPPRESSED,
    CLEARED,  # the error has no traceback
    f"{CLEARED}\nraise ValueError",
    "with pytest.raises(AssertionError):\n    moving(dtdispatch, device_mesh)",
    "try:\n    moving(dtdispatch, device_mesh)\nexcept GateError:\n    print('ah')",
    f"{SUPPRESSED}\npytest.skip('later')",
    "thread = threading.Thread(target=moving, args=(dtdispatch, device_mesh))\nthread.start()\nthread.join()",
    # A scaling and a compile.
    "a = sharded(device_mesh)\nwith contextlib.suppress(Exception):\n"
    "    adds = lambda n: lambda: [a + a for _ in range(n)]\n"
    "    dtdispatch.scaling(adds, (1, 8), name='adds', max_exponent=1e-9)",
    "def breaks(x):\n    torch._dynamo.graph_break()\n    return x + 1\n"
    "with contextlib.suppress(Exception):\n"
    "    dtdispatch.compile(breaks, torch.ones(2), fullgraph=False, backend='eager')",
]
FIXTURES = f"""
@pytest.fixture
def early(dtdispatch, device_mesh):
{indent(SUPPRESSED, "    ")}

@pytest.fixture
def late(dtdispatch, device_mesh):
    yield
{indent(SUPPRESSED, "    ")}

def test_early(early): pass

def test_late(late): pass
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exceeded_limit_fails_its_test_despite_swallowed_errors(pytester: pytest.Pytester) -> None:
    source = source_of(*SWALLOWED) + FIXTURES
    flags = (f"{LIMIT},graph_breaks=0", "--dtdispatch-rounds=5", "-Wignore")
    ran = judge_source(pytester, source, *flags, failed=len(SWALLOWED), errors=2, passed=1)
    assert ran.verdicts() == {"regressed": len(SWALLOWED) + 2}
    assert text_of(ran.result).count(": over its limits") >= len(SWALLOWED) + 2
    lines = [line for line in ran.result.outlines if re.match(r">\s+dtdispatch.steps\(", line)]
    assert len(lines) == len(SWALLOWED), "of all but the last two, and of two fixtures"


def test_xfail_test_may_exceed_a_limit(pytester: pytest.Pytester) -> None:
    expected = {
        "@pytest.mark.xfail": f"{STEADY}{SUPPRESSED}",
        "@pytest.mark.xfail(strict=True)": "moving(dtdispatch, device_mesh)",
        "@pytest.mark.xfail(strict=True, raises=AssertionError)": SUPPRESSED,
        "@pytest.mark.xfail(raises=GateError)": CLEARED,
        "": f"{SUPPRESSED}\npytest.xfail('known')",
    }
    source = source_of(*expected.values(), marks=tuple(expected))
    ran = judge_source(pytester, source, LIMIT, xfailed=len(expected))
    assert ran.result.ret == pytest.ExitCode.OK
    assert ran.verdicts() == {"passed": 1, "quarantined": len(expected)}
    marks = ("@pytest.mark.xfail(raises=ValueError)",)
    of_another = source_of(f"{SUPPRESSED}\nraise ValueError", marks=marks)
    assert judge_source(pytester, of_another, LIMIT, failed=1).verdicts() == {"regressed": 1}


# Markers that are added late

MARK = "request.node.add_marker(pytest.mark.dtdispatch(max='redistributes=0'))"
BY_FIXTURE = f"""
@pytest.fixture
def late(dtdispatch, request):
    {MARK}

@pytest.fixture
def at_the_end(dtdispatch, request):
    yield
    {MARK}
"""
BY_HOOK = {
    "pytest_runtest_call(item)": "tryfirst=True",
    "pytest_runtest_setup(item)": "trylast=True",
    "pytest_runtest_teardown(item)": "tryfirst=True",
}
LATE_LINE = "test_it.py:*: the marker dtdispatch changed after measuring began: *"


def test_marker_set_by_a_test_is_refused(pytester: pytest.Pytester) -> None:
    move = "moving(dtdispatch, device_mesh)"
    bodies = (f"{MARK}\n{move}", f"{move}\n{MARK}", f"request.node.own_markers.clear()\n{move}")
    marks = ("", "", "@pytest.mark.dtdispatch(max='wraps=9')")
    source = source_of(*bodies, marks=marks) + BY_FIXTURE
    source += f"\ndef test_late(dtdispatch, late, device_mesh):\n    {move}\n"
    source += f"\ndef test_end(dtdispatch, at_the_end, device_mesh):\n    {move}\n"
    result = measure_source(pytester, source, failed=4, passed=1, errors=1)
    lines = [line for line in result.outlines if line.startswith("test_it.py:") and "changed after" in line]
    assert len(lines) == 5, text_of(result)
    assert_reported_once(measure(pytester, "-ktest_late"), "changed after measuring began")


@pytest.mark.parametrize("hook", BY_HOOK)
@pytest.mark.parametrize("flag", [(), ("--dtdispatch-all",)])
def test_marker_set_by_a_late_hook_is_refused(
    pytester: pytest.Pytester, hook: str, flag: tuple[str, ...]
) -> None:
    options = BY_HOOK[hook]
    pytester.makeconftest(
        f"import pytest\n@pytest.hookimpl({options})\ndef {hook}:\n    {MARK.replace('request.node', 'item')}"
    )
    result = measure_source(pytester, source_of("moving(dtdispatch, device_mesh)"), *flag)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([LATE_LINE])


def test_marker_set_before_measuring_is_applied(pytester: pytest.Pytester) -> None:
    mark = MARK.replace("request.node", "item")
    pytester.makeconftest(
        f"import pytest\ndef pytest_runtest_setup(item): {mark}\n"
        f"@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n"
        f"    for item in items: {mark}"
    )
    ran = judge_source(pytester, source_of("moving(dtdispatch, device_mesh)"), failed=1)
    assert ran.verdicts() == {"regressed": 1}


def test_limit_verdict_is_written_to_files(pytester: pytest.Pytester) -> None:
    source = source_of("steady(dtdispatch, device_mesh)\nmoving(dtdispatch, device_mesh)")
    files = ("--dtdispatch-export=markdown:run.md", "--junitxml=run.xml")
    ran = judge_source(pytester, source, *files, LIMIT, failed=1)
    [failed] = ran.run.gates[0].failed
    assert (str(failed.row), failed.change) == ("test_it.py::test_0::train", CountChange(0, 1))
    assert [line.partition(":")[0] for line in failed.lines] == ["test_it.py"]
    assert (pytester.path / "run.md").read_text().startswith("## dtdispatch: failed, 1 passed, 1 regressed;")
    found = {one.get("name"): one.get("value") for one in ET.parse("run.xml").getroot().iter("property")}
    assert found["dtdispatch.gate.limits"] == "failed"


# Limits without counts


def test_limits_without_counts_fail(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_max = misses=0\n  wraps=3\n")
    flags = ("--dtdispatch-max=misses=1", "--dtdispatch-max=recompiles=0")
    source = """
@pytest.mark.dtdispatch(max='misses=0')
def test_marked(dtdispatch): pass

@pytest.mark.dtdispatch(max='misses=0')
def test_without_fixture(): pass

def test_plain(dtdispatch): pass
"""
    ran = judge_source(pytester, source, *flags, failed=2, passed=1)
    ran.result.stdout.fnmatch_lines(["test_it.py::test_marked: not judged"])
    assert ran.verdicts() == {"missing": 5}
    of_run = [each.details[0] for each in ran.run.gates[0].verdicts if not each.row.test]
    assert [line.partition(";")[0] for line in of_run] == [
        f"--dtdispatch-max {limit} judged nothing: {why}"  # the flag overrides the ini file
        for limit, why in (
            *(("misses=1", "no steps were counted"), ("wraps=3", "no steps were counted")),
            ("recompiles=0", "nothing was compiled"),
        )
    ]
    run(pytester, passed=3)
    assert measure(pytester, flags[0], "--collect-only").ret == pytest.ExitCode.OK
    ran = judged(pytester, *MEASURED, "--benchmark-disable", "-k", "marked")
    assert ran.verdicts() == {"disabled": 3}
    ran.result.stdout.fnmatch_lines(["misses=0 judged nothing: --benchmark-disable is set"])


def test_error_without_counts_under_limit_fails_its_test(pytester: pytest.Pytester) -> None:
    bodies = (
        f"{STEADY}{RAISES}dtdispatch.steps(broken, name='train')",
        f"{RAISES}dtdispatch.compile(broken, backend='eager')",
        f"{STEADY}dtdispatch.compile(lambda: 1, name='one', backend='eager')",
    )
    limits = "--dtdispatch-max=misses=0,graph_breaks=0"
    ran = judge_source(pytester, source_of(*bodies), limits, failed=2, passed=1)
    assert ran.verdicts() == {"passed": 3, "missing": 2}
    missing = [each for each in ran.run.gates[0].verdicts if each.verdict == "missing"]
    assert [str(each.row) for each in missing] == ["test_it.py::test_0::train", "test_it.py::test_1::broken"]
    assert all("it raised before it left counts" in each.details[0] for each in missing)
    measure(pytester, passed=3)
    # Regions in a run that counts them.
    regions = ("with dtdispatch.capture(): broken()", "dtdispatch.call(broken)")
    good = "a = sharded(device_mesh)\nwith dtdispatch.capture():\n    a + a\n"
    source, counts = source_of(*(f"{good}{RAISES}{each}" for each in regions)), "--dtdispatch-metric=counts"
    measure_source(pytester, source, counts, "--dtdispatch-max=wraps=0", failed=2)
    measure(pytester, counts).assert_outcomes(passed=2)


def test_later_counts_and_skipped_tests_satisfy_limits(pytester: pytest.Pytester) -> None:
    bodies = (
        f"{RAISES}dtdispatch.steps(broken, name='good')\nsteady(dtdispatch, device_mesh)",
        f"{RAISES}dtdispatch.steps(broken, name='train')\npytest.skip('not here')",
        # Subtests of pytest 9 produce reports while their test runs.
        "call = pytest.CallInfo.from_call(lambda: None, when='call')\n"
        "assert request.node.ihook.pytest_runtest_makereport(item=request.node, call=call).passed\n"
        "steady(dtdispatch, device_mesh)",
    )
    marks = ("", "", "@pytest.mark.dtdispatch(max='misses=0')")
    source = source_of(*bodies, marks=marks)
    result = measure_source(pytester, source, "--dtdispatch-max=misses=0", passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.OK
