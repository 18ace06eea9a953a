"""The report of a run as a page: written at its end, and the same from the file that was saved of it."""

from __future__ import annotations

from dataclasses import replace

import jinja2  # noqa: F401 (else the run imports it, pytester forgets it, and its environment is of two copies)
import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import read_run
from tests.plugin_runs import IMPORTS, assert_says_once, measure

pytestmark = pytest.mark.torch

TESTS = f"""{IMPORTS}
def test_all(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        a @ a
    dtdispatch.steps(lambda: a * 2, name="<step>")
    dtdispatch.compare({{"one": lambda: a + a, "other": lambda: a * 2}})
    dtdispatch.budget(lambda: a + a, name="train")

def test_steps_alone(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.steps(lambda: a * 2)
"""
EXPECTED = "test_reported.py::test_all::<step>,collectives,7,0.0\n"


def test_a_live_page_is_the_page_of_the_saved_run(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile(test_reported=TESTS)
    (pytester.path / "expected.csv").write_text(EXPECTED)
    files = ("--dtdispatch-export=html:page.html", "--benchmark-json=saved.json")
    result = measure(pytester, *files, "--dtdispatch-expected=expected.csv")
    result.stdout.fnmatch_lines(["* written to *page.html", "*1 gate failed*"])
    page, saved = pytester.path / "page.html", pytester.path / "saved.json"
    again = read_run(saved)
    assert html_page(replace(again, where="")) == page.read_text()
    for said in (
        "Failed: ",
        "1 improved",
        "&lt;step&gt;",
        "unexplained",
        "compare[other]",
        "Comparisons",
    ):
        assert said in page.read_text()
    capsys.readouterr()
    assert main(["report", str(saved), str(saved)]) == 0
    assert "misses_per_step" in capsys.readouterr().out
    assert main(["report", str(saved), str(saved), "--export", "html:page.html"]) == 2
    assert capsys.readouterr().err == "dtdispatch: --export writes one run: name one SAVED.json\n"


def test_a_page_replaces_a_page_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_reported=TESTS)
    path = pytester.path / "other.html"
    path.write_text("<!DOCTYPE html>\n<title>mine</title>")
    said = "holds something else, not an HTML report: name another file, or remove it"
    assert_says_once(measure(pytester, f"--dtdispatch-export=html:{path}"), said)
    assert path.read_text().endswith("<title>mine</title>")
