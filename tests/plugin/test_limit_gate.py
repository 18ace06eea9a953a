"""Limits as a gate: nothing that a test does gets past them, and their verdict stands in every file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from textwrap import indent

import pytest

from tests.plugin_runs import IMPORTS, import_compilers, measure, text_of

pytestmark = pytest.mark.torch
import_compilers()

STEPS = (
    IMPORTS
    + """
import contextlib, threading
from pytest_dtdispatch.errors import GateError

def moving(dtdispatch, mesh, name="train"):
    a = sharded(mesh)
    dtdispatch.steps(lambda: a.full_tensor(), warmup=1, steps=2, name=name)

def steady(dtdispatch, mesh, name="good"):
    a = sharded(mesh)
    dtdispatch.steps(lambda: a + a, warmup=1, steps=2, name=name)

"""
)
SUPPRESSED = """
with contextlib.suppress(Exception):
    moving(dtdispatch, device_mesh)
"""
SWALLOWED = {
    "suppressed": SUPPRESSED,
    "expected": "with pytest.raises(AssertionError):\n    moving(dtdispatch, device_mesh)",
    "caught": "try:\n    moving(dtdispatch, device_mesh)\nexcept GateError:\n    print('ah')",
    "skipped": f"{SUPPRESSED}\npytest.skip('later')",
    "thread": (
        "thread = threading.Thread(target=moving, args=(dtdispatch, device_mesh))\n"
        "thread.start()\nthread.join()"
    ),
    "scaling": (
        "a = sharded(device_mesh)\nwith contextlib.suppress(Exception):\n"
        "    adds = lambda n: lambda: [a + a for _ in range(n)]\n"
        "    dtdispatch.scaling(adds, (1, 8), name='adds', max_exponent=1e-9)"
    ),
    "compiled": (
        "def broken(x):\n    torch._dynamo.graph_break()\n    return x + 1\n"
        "with contextlib.suppress(Exception):\n"
        "    dtdispatch.compile(broken, torch.ones(2), fullgraph=False, backend='eager')"
    ),
}
LIMITS = "--dtdispatch-max=redistributes=0,graph_breaks=0"
FAILED = "gate: failed against limits: *1 regressed*"


def a_test(body: str, mark: str = "") -> str:
    return f"{STEPS}\n{mark}\ndef test_it(dtdispatch, device_mesh):\n{indent(body, '    ')}\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", SWALLOWED)
def test_a_test_fails_by_what_broke_a_limit_however_it_ends(pytester: pytest.Pytester, how: str) -> None:
    pytester.makepyfile(a_test(SWALLOWED[how]))
    result = measure(pytester, LIMITS, "--dtdispatch-rounds=5", "-Wignore")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *GateError: *: over its limits", FAILED])


def test_what_a_fixture_swallows_fails_the_part_of_the_test_that_ran_it(pytester: pytest.Pytester) -> None:
    swallow = indent(SUPPRESSED, "    ")
    pytester.makepyfile(
        f"{STEPS}\n@pytest.fixture\ndef early(dtdispatch, device_mesh):\n{swallow}\n"
        f"@pytest.fixture\ndef late(dtdispatch, device_mesh):\n    yield\n{swallow}\n"
        "def test_early(early): pass\n\ndef test_late(late): pass\n"
    )
    result = measure(pytester, "--dtdispatch-max=redistributes=0")
    result.assert_outcomes(errors=2, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gate: failed against limits: 2 regressed"])


@pytest.mark.parametrize(
    ("mark", "body", "outcome"),
    [
        ("@pytest.mark.xfail", SUPPRESSED, "xfailed"),
        ("@pytest.mark.xfail(strict=True)", "moving(dtdispatch, device_mesh)", "xfailed"),
        ("@pytest.mark.xfail(strict=True, raises=AssertionError)", SUPPRESSED, "xfailed"),
        ("", f"{SUPPRESSED}\npytest.xfail('known')", "xfailed"),
        ("@pytest.mark.xfail(raises=ValueError)", f"{SUPPRESSED}\nraise ValueError", "failed"),
    ],
)
def test_a_test_that_is_to_fail_may_break_a_limit(
    pytester: pytest.Pytester, mark: str, body: str, outcome: str
) -> None:
    pytester.makepyfile(a_test(body, mark))
    result = measure(pytester, "--dtdispatch-max=redistributes=0")
    result.assert_outcomes(**{outcome: 1})
    is_expected = outcome == "xfailed"
    assert result.ret == (pytest.ExitCode.OK if is_expected else pytest.ExitCode.TESTS_FAILED)
    assert ("its test is marked to fail (xfail)" in text_of(result)) is is_expected
    word = "passed" if is_expected else "failed"
    result.stdout.fnmatch_lines([f"gate: {word} against limits: 1 regressed"])


def test_of_a_test_that_is_run_again_the_last_run_counts(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(2):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
    )
    once = (
        "global RUNS\nRUNS += 1\nif RUNS == 1:"
        + indent(SUPPRESSED, "    ")
        + "\nsteady(dtdispatch, device_mesh)"
    )
    pytester.makepyfile(a_test(once).replace("import contextlib", "RUNS = 0\nimport contextlib"))
    result = measure(pytester, "--dtdispatch-max=redistributes=0")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gate: passed against limits: 1 passed"])


# In files


def test_the_verdict_of_a_limit_stands_first_in_every_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    body = "steady(dtdispatch, device_mesh)\nmoving(dtdispatch, device_mesh)"
    pytester.makepyfile(test_files=a_test(body))
    files = ("--dtdispatch-export=markdown:run.md", "--dtdispatch-export=html:run.html", "--junitxml=run.xml")
    result = measure(pytester, *files, "--dtdispatch-max=redistributes=0")
    row = "test_files.py::test_it::train"
    result.stdout.fnmatch_lines(
        [
            "  good *steady",
            "  train *over its limits, steady",
            "gate: failed against limits: 1 passed, 1 regressed",
            f"  regressed {row}",
            "    redistributes=0, and step 1 has 1",
            "::error file=test_files.py,line=*,title=dtdispatch%3A regressed::"
            f"{row}: redistributes=0; 0 -> 1",
            "*1 failed, 1 gate failed*",
        ]
    )
    heading, _, _, _, first, *_ = (pytester.path / "run.md").read_text().splitlines()
    assert heading == "## dtdispatch: failed, 1 passed, 1 regressed"
    assert first == f"| `{row}` | regressed | 0 -\\> 1 | redistributes=0 | limits |"
    found = {one.get("name"): one.get("value") for one in ET.parse("run.xml").getroot().iter("property")}
    assert found["dtdispatch.outcome"] == "failed, 1 passed, 1 regressed"
    assert found["dtdispatch.gate.limits"] == "failed"
    page = (pytester.path / "run.html").read_text()
    said = re.sub(r"<[^>]*>", "", page.partition("<main")[2])
    assert said.index("Failed") < said.index("Counts of each step")
    assert "No signature or call was measured" not in said


# Where nothing was judged


def test_a_limit_of_the_ini_file_that_judges_nothing_fails_the_run(pytester: pytest.Pytester) -> None:
    path = pytester.makeini("[pytest]\ndtdispatch_max = misses=0\n  wraps=3\n")
    pytester.makepyfile("def test_plain(dtdispatch): pass")
    result = measure(pytester, "--dtdispatch-max=misses=1")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "gate: failed against limits: 2 missing" in text_of(result)
    result.stdout.fnmatch_lines([f"*missing {path}: dtdispatch_max wraps=3"])
    assert "--dtdispatch-max misses=1 judged nothing" in text_of(result), "the flag beats the file"
    assert "dtdispatch_max wraps=3 judged nothing: no steps were counted" in text_of(result)


def test_tests_that_are_only_listed_need_nothing_judged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(dtdispatch): pass")
    assert measure(pytester, "--dtdispatch-max=misses=1", "--collect-only").ret == pytest.ExitCode.OK


RAISES = "def broken(*args):\n    raise ValueError\n\nwith pytest.raises(ValueError):\n    "
UNCOUNTED = {
    "steps": ("train", "dtdispatch.steps(broken, name='train')"),
    "compile": ("broken", "dtdispatch.compile(broken, backend='eager')"),
}


@pytest.mark.parametrize("method", UNCOUNTED)
def test_what_raises_under_a_limit_and_leaves_no_counts_fails_its_test(
    pytester: pytest.Pytester, method: str
) -> None:
    name, call = UNCOUNTED[method]
    limit = {"steps": "misses=0", "compile": "graph_breaks=0"}[method]
    good = "steady(dtdispatch, device_mesh)\ndtdispatch.compile(lambda: 1, name='one', backend='eager')"
    other = a_test(good).replace("test_it", "test_other").removeprefix(STEPS)
    source = a_test(f"{good}\n{RAISES}{call}") + other
    pytester.makepyfile(test_raises=source)
    result = measure(pytester, f"--dtdispatch-max={limit}")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            f"test_raises.py::test_it::{name}: not judged",
            f"{limit} judged nothing: it raised before it left counts",
            "gate: failed against limits: 2 passed, 1 missing",
        ]
    )
    pytester.makepyfile(test_raises=source)
    measure(pytester).assert_outcomes(passed=2)


@pytest.mark.parametrize("region", ["with dtdispatch.capture(): broken()", "dtdispatch.call(broken)"])
def test_a_region_that_raises_in_a_run_that_counts_is_not_judged_either(
    pytester: pytest.Pytester, region: str
) -> None:
    good = "a = sharded(device_mesh)\nwith dtdispatch.capture():\n    a + a\n"
    pytester.makepyfile(a_test(f"{good}{RAISES}{region}"))
    counts = "--dtdispatch-metric=counts"
    measure(pytester, counts, "--dtdispatch-max=wraps=0").assert_outcomes(failed=1)
    measure(pytester, counts).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "body",
    [
        f"{RAISES}dtdispatch.steps(broken, name='good')\nsteady(dtdispatch, device_mesh)",
        f"{RAISES}dtdispatch.steps(broken, name='train')\npytest.skip('not here')",
    ],
    ids=["counted the second time", "skipped"],
)
def test_a_step_that_is_counted_after_all_and_a_test_that_is_skipped_are_fine(
    pytester: pytest.Pytester, body: str
) -> None:
    other = a_test("steady(dtdispatch, device_mesh)").replace("test_it", "test_other").removeprefix(STEPS)
    pytester.makepyfile(a_test(body) + other)
    assert measure(pytester, "--dtdispatch-max=misses=0").ret == pytest.ExitCode.OK


def test_what_a_test_has_not_counted_yet_is_not_missed_in_a_part_of_it(pytester: pytest.Pytester) -> None:
    """As subtests of pytest 9 do, which make reports while their test runs."""
    body = """
call = pytest.CallInfo.from_call(lambda: None, when="call")
assert request.node.ihook.pytest_runtest_makereport(item=request.node, call=call).passed
steady(dtdispatch, device_mesh)
"""
    source = a_test(body, "@pytest.mark.dtdispatch(max='misses=0')")
    pytester.makepyfile(source.replace("test_it(", "test_it(request, "))
    measure(pytester).assert_outcomes(passed=1)
