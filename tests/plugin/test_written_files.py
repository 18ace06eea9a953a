"""Files for CI and other tools, from flags to content."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

# Imported once here: pytester forgets modules imported by a run, and two copies share an environment.
import jinja2  # noqa: F401
import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.gates.expected import read_results
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.settings import EXPORTS
from pytest_dtdispatch.report import exports
from pytest_dtdispatch.report.exports import FORMATS, Format
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import KEY, ReportedRun, encode_run, read_run
from tests.plugin_runs import ADDS, IMPORTS, MEASURED, assert_refused, judged, measure, text_of
from tests.reported_runs import COUNTED, results_of
from tests.row_ids import number

pytestmark = pytest.mark.torch

TESTS = (
    f"{ADDS}    print('::error::not ours')\n"
    + """

@pytest.mark.parametrize("name", ["two\\n::error::lines"])
def test_step(dtdispatch, a, name):
    dtdispatch.steps(lambda: a + a, name=name)

def test_all(dtdispatch, a):
    dtdispatch.steps(lambda: a * 2, name="<step>")
    dtdispatch.compare({"one": lambda: a + a, "other": lambda: a * 2})
    dtdispatch.budget(lambda: a + a, name="train")

def test_same(dtdispatch, a):  # without an op that queries the propagator
    with dtdispatch.capture():
        torch.ops.aten.is_same_size(a, a)
"""
)
STEP = r"test_it.py::test_step[two\n::error::lines]::two\n::error::lines"
FILES = [name for name in EXPORTS if name != "repro"]
TIMED = [name for name in EXPORTS if name != "trace"]
LATER = sorted(FORMATS.keys() - {"json", "html", "csv", "repro"})
EXPECTED = f"{STEP},misses_per_step,7,0\ngone,misses_per_step,1,0\n"


@pytest.fixture(autouse=True)
def _no_actions(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """Hide GitHub Actions from the plugin, because this suite may run there."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_it=IMPORTS + TESTS)


def test_saved_run_exports_like_live_run(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live run and its saved file have equal exports."""
    live = [f"--dtdispatch-export={name}:live-{name}" for name in TIMED]
    (pytester.path / "expected.csv").write_text("test_it.py::test_all::<step>,collectives,7,0.0\n")
    files = (*live, "--benchmark-json=saved.json", "--junitxml=junit.xml")
    measure(pytester, *files, "--dtdispatch-expected=expected.csv")
    capsys.readouterr()
    path = pytester.path
    assert main(["report", "saved.json", *(f"--export={name}:saved-{name}" for name in TIMED)]) == 0
    scripts = [
        {each.name: each.read_text() for each in (path / f"{of}-repro").iterdir()} for of in ("live", "saved")
    ]
    assert len(scripts[0]) == 1
    assert scripts[0] == scripts[1]
    for name in set(TIMED) - {
        "html",
        "markdown",
        "repro",
    }:  # the first two contain the name of the saved file
        assert (path / f"live-{name}").read_bytes() == (path / f"saved-{name}").read_bytes(), name
    same = "test_it.py::test_same::is_same_size.default(f32[8,8]S0, f32[8,8]S0)@4"
    numbers = read_results(path / "live-csv", metric_names())
    assert [number.metric for number in numbers if name_in_files(number.row) == same] == ["call_ns"]
    page = (path / "live-html").read_text()
    assert html_page(replace(read_run(path / "saved.json"), where="")) == page
    assert_has_our_properties(path / "junit.xml")


def test_run_with_only_budgets_is_saved_and_compared(pytester: pytest.Pytester) -> None:
    source = "def test_budget(dtdispatch, a): dtdispatch.budget(lambda: a + a, name='train')"
    pytester.makepyfile(test_alone=IMPORTS + source)
    measure(pytester, "test_alone.py", "--benchmark-save=base", "--benchmark-json=run.json", passed=1)
    base = read_run(pytester.path / "run.json")
    ran = judged(pytester, *MEASURED, "test_alone.py", "--benchmark-compare=0001", passed=1)
    assert {**ran.run.earlier} == {"budget": base.results["budget"]}
    assert "0001_base.json, taken 20" in ran.run.about_earlier


def assert_has_our_properties(file: Path) -> None:
    """Check that properties belong to the suite, as xunit2 requires."""
    root = ET.parse(file).getroot()
    properties = root.iterfind("testsuite/properties/property")
    found = {each.attrib["name"]: each.attrib["value"] for each in properties}
    assert found["dtdispatch.outcome"].startswith("failed, 1 improved, ")
    assert found["dtdispatch.environment.device"] == "cpu"
    assert found[f"dtdispatch.misses_per_step.{STEP}"] == "0"
    hits = [name for name in found if name.startswith("dtdispatch.dispatch_hit_ns.test_it.py::test_add::")]
    assert [found[name].isdigit() for name in hits] == [True]


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ("trace:out", "out was not written: no steps were counted"),
        ("oss-json:out", "'oss-json:out' is not FORMAT:FILE, with a format of csv, json, github-"),
        ("markdown:auto", "--export markdown:auto is for a run in a job of GitHub Actions: name a file"),
    ],
)
def test_impossible_export_is_a_one_line_error(
    export: str, message: str, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    found = number("t.py::test_a::train", "misses_per_step", 2)
    saved = {"benchmarks": [], KEY: encode_run(ReportedRun(numbers=(found,)))}
    Path("saved.json").write_text(json.dumps(saved))
    assert main(["report", "saved.json", f"--export={export}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "name", ["json", "html", "csv", *(pytest.param(name, marks=pytest.mark.long) for name in LATER)]
)
def test_each_format_can_be_written_to_stdout(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(test_it=f"{IMPORTS}def test_it(dtdispatch, a): dtdispatch.steps(lambda: a + a)")
    both = [f"--dtdispatch-export={name}:{path}" for path in ("-", "file")]
    result = measure(pytester, "--dtdispatch-metric=counts", "-q", "-s", *both)
    written, text = (pytester.path / "file").read_text(), result.stdout.str()
    assert text.rstrip("\n").endswith(f"\n{written.rstrip()}")
    assert not Path("-").exists()


def test_two_exports_to_stdout_are_refused(pytester: pytest.Pytester) -> None:
    both = ("--dtdispatch-export=html:-", "--dtdispatch-export=csv:-")
    assert_refused(measure(pytester, *both), "csv: - is the file of --dtdispatch-export html too")


def test_report_prints_only_json_on_standard_output(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ReportedRun(
        numbers=(number("t.py::test_a::train", "misses_per_step", 2),), results=results_of(COUNTED)
    )
    Path("saved.json").write_text(json.dumps({"benchmarks": [], KEY: encode_run(run)}))
    assert main(["report", "saved.json", "--export=json:-", "--export=csv:results.csv"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["advice"][0]["change"] == "do it once"
    assert err == "1 result written to results.csv\n"


def test_ini_exports_are_written_beside_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports of an ini file are written beside it, if the run has their results."""
    pytester.makeini("[pytest]\ndtdispatch_export =\n  bencher:b.json\n  csv:s.csv\n  markdown:auto\n")
    monkeypatch.chdir(pytester.mkdir("below"))
    result = measure(pytester, "..", "-k", "add")
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert (pytester.path / "b.json").exists()
    assert (pytester.path / "s.csv").exists()
    notice = "no summary was written: --dtdispatch-export markdown:auto finds no GITHUB_STEP_SUMMARY"
    assert notice in text_of(result)


def test_job_gets_summary_and_annotations(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary is appended to that of the job, and failed rows are annotated."""
    summary = pytester.path / "summary.md"
    summary.write_text("# of another command\n")
    (pytester.path / "expected.csv").write_text(EXPECTED)
    for name, value in (
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_STEP_SUMMARY", str(summary)),
        ("GITHUB_WORKSPACE", str(pytester.path.parent)),
    ):
        monkeypatch.setenv(name, value)
    flags = ("--dtdispatch-export=markdown:auto", "--dtdispatch-expected=expected.csv", "-k", "step")
    result = measure(pytester, *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    [gone, found] = [line for line in result.outlines if line.startswith("::")]
    assert gone.startswith(
        "::error title=dtdispatch%3A missing::gone: misses_per_step 1 +-0 %25; this run has no "
    )
    lines = (pytester.path / "test_it.py").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, start=1) if "parametrize" in text)
    at = f"file={pytester.path.name}/test_it.py,line={line},title=dtdispatch%3A improved"
    assert found.startswith(f"::error {at}::{STEP}: misses_per_step 7 ")
    assert result.outlines[-1].startswith("=")
    text = summary.read_text()
    assert text.startswith("# of another command\n\n## dtdispatch: failed, 1 missing, 1 improved, 6 new\n")
    measure(pytester, *flags, "--collect-only")
    assert summary.read_text() == text
    result = measure(pytester, *flags, "-o", "dtdispatch_annotations=false")
    assert not [line for line in result.outlines if line.startswith("::")]


def broken(*args: object, **kwargs: object) -> NoReturn:
    raise ZeroDivisionError('a "writer"')


def outcome_of(result: pytest.RunResult) -> tuple[list[str], str]:
    """Return the error lines about files, and pytest's last line."""
    assert "INTERNALERROR" not in text_of(result)
    refused = [line.partition(" was not written")[0] for line in result.outlines if "failed: " in line]
    return [line.rpartition("/")[2] for line in refused], result.outlines[-1]


@pytest.mark.parametrize("names", [FILES[::2], FILES[1::2]])
def test_raising_writers_leave_other_files(
    names: tuple[str, ...], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        form = exports.FORMATS[name]
        assert isinstance(form, Format)
        monkeypatch.setitem(exports.FORMATS, name, replace(form, text=broken))
    flags = [f"--dtdispatch-export={each}:{each}" for each in FILES]
    result = measure(pytester, "-ktest_step", *flags)
    refused, last = outcome_of(result)
    assert refused == [*names]
    assert "1 passed" in last
    assert f"{len(names)} files not written" in last
    assert {path.name for path in pytester.path.iterdir()} & {*FILES} == {*FILES} - {*names}
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("writer", "refused"),
    [
        ("plugin.run.properties", "failed: our part of junit.xml"),
        ("plugin.run.error_commands", "failed: the list of annotations"),
        ("plugin.finish.summary", "summary.md"),
        ("plugin.pytest_benchmark.encode_run", "failed: the run in pytest-benchmark's file"),
    ],
)
def test_raising_section_in_other_files_is_refused(
    writer: str, refused: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"pytest_dtdispatch.{writer}", broken)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    names = ("csv:rows", "markdown:auto")
    flags = (
        "--junitxml=junit.xml",
        "--benchmark-json=saved.json",
        *(f"--dtdispatch-export={n}" for n in names),
    )
    found, last = outcome_of(measure(pytester, "-ktest_step", *flags))
    assert found == [refused]
    assert "1 passed" in last
    assert "1 file not written" in last
    assert all((pytester.path / name).exists() for name in ("junit.xml", "saved.json", "rows"))


def test_raising_table_or_section_leaves_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raising table is reported in one line; a raising section leaves pytest's summary intact."""
    flags = ("-ktest_step", "--dtdispatch-export=csv:rows", "--dtdispatch-export=html:page")
    monkeypatch.setitem(KINDS, "steps", replace(KINDS["steps"], document=broken))
    result = measure(pytester, *flags)
    assert outcome_of(result)[0] == []
    assert "the table of steps raised ZeroDivisionError" in text_of(result)
    assert "the table of steps raised ZeroDivisionError" in (pytester.path / "page").read_text()
    monkeypatch.setattr("pytest_dtdispatch.plugin.ending.notice", broken)
    result = measure(pytester, *flags)
    assert "this section was not printed: ZeroDivisionError" in text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    monkeypatch.setattr("pytest_dtdispatch.plugin.finish.caveats", broken)
    result = measure(pytester, *flags)
    refused, last = outcome_of(result)
    assert refused[:3] == ["failed: the report of this run", "rows", "page"]
    assert [line.partition(" (")[0] for line in refused[3:]] == [
        'failed: this section was not printed: ZeroDivisionError: a "writer"'
    ]
    assert "1 passed" in last


def test_job_summary_reports_an_incomplete_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of a job states that a run is incomplete."""
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    pytester.makepyfile(test_it="def test_one(): assert False\ndef test_two(): pass")
    measure(pytester, "--dtdispatch-export=markdown:auto", "-x")
    assert summary.read_text() == "## dtdispatch: no results\n\nthe run stopped after 1 of 2 tests\n"
    summary.unlink()
    (pytester.path / "expected.csv").write_text(EXPECTED)
    gate = ("--dtdispatch-expected=expected.csv", "--benchmark-disable", "--dtdispatch-backend=nccl")
    result = measure(pytester, "--dtdispatch-export=markdown:auto", *gate, "-k", "two")
    assert "INTERNALERROR" not in text_of(result)
    assert summary.read_text().startswith("## dtdispatch: failed, 1 disabled\n")
