"""The page of versions: what is read of real runs, and that the page says what was found. Without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.version_chart import chart
from benchmarks.version_notes import NOTES
from benchmarks.version_page import TABLES, mean_ratio, steps, upgrade, versions_of, with_tables
from benchmarks.versions import FOUND, PAGE, PICTURE, read_answers, read_counts, reason, timed

ROW = "suite/ab_ops.py::test_core[add]::add.Tensor(f32[16,8]S0, f32[16,8]S0)@4"
MATRIX = {
    "sides": {
        f"python-{number}": {"torch": torch, "cpu": "some CPU", "python": "3.11.7"}
        for number, torch in enumerate(("2.9.1+cpu", "2.10.0+cpu"), start=1)
    },
    "processes": [
        {"side": f"python-{side}", "rows": {f"{ROW}::hit": {"quietest_ns": ns}}}
        for quiet, side in ((20_000, 1), (10_000, 2))
        for ns in (quiet, quiet * 1.8, quiet + 1000, quiet * 1.7, quiet * 1.9)
    ],
    "verdicts": [
        {
            "base": "python-1",
            "head": "python-2",
            "row": f"{ROW}::hit",
            "verdict": "improved",
            "figures": {"shift_percent": -47.62},
        }
    ],
}
ANSWERS = """<testsuites><testsuite>
<testcase><properties>
<property name="table" value="Ours"/><property name="asked" value="Budgets"/>
</properties></testcase>
<testcase><properties>
<property name="table" value="Ours"/><property name="asked" value="FSDP2"/>
</properties><failure message="RuntimeError: FSDP requires CUDA for streams">Traceback</failure></testcase>
<testcase><properties>
<property name="table" value="Caches"/><property name="asked" value="`add`"/>
<property name="answer" value="native"/>
</properties></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def found() -> dict[str, Any]:
    """What a run over two versions found."""
    answers = read_answers(ANSWERS)
    before = {"Ours": {"Budgets": "yes", "FSDP2": "yes"}, "Caches": {"`add`": "python"}}
    counts = {"2.9.1": {"view": {"hit": 1000.0}}, "2.10.0": {"view": {"hit": 500.0, "miss": 30_000.0}}}
    return {
        "probes": {"2.9.1": before, "2.10.0": answers},
        "counts": counts,
        "time": timed(MATRIX, "2026-11-23"),
    }


def test_a_figure_is_that_of_the_quiet_processes_and_stands_under_its_version(found: dict[str, Any]) -> None:
    assert found["time"]["rows"] == {"add": {"hit": {"2.9.1": 21.0, "2.10.0": 11.0}}}
    assert versions_of(found) == ["2.9.1", "2.10.0"]
    assert mean_ratio(found, "hit", "2.9.1", "2.10.0") == pytest.approx(11 / 21)
    assert mean_ratio(found, "miss", "2.9.1", "2.10.0") is None
    assert list(upgrade(found))[-1] == "| **2.9.1** | 0.52 / - |"


def test_answers_are_read_with_the_reason_of_what_fails() -> None:
    assert read_answers(ANSWERS) == {
        "Ours": {"Budgets": "yes", "FSDP2": "no: RuntimeError: FSDP requires CUDA for streams"},
        "Caches": {"`add`": "native"},
    }


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("NotImplementedError: Operator aten.glu.default", "NotImplementedError: Operator aten.glu.default"),
        (
            "torch._dynamo.exc.TorchRuntimeError: at 0x7f\nunhashable type: SymInt\n\nfrom",
            "unhashable type: SymInt",
        ),
        ("pytest_dtdispatch.errors.MeshError: a | b", "MeshError: a / b"),
    ],
)
def test_a_reason_is_one_line_that_fits_into_a_page(message: str, said: str) -> None:
    assert reason(message) == said


def test_counts_are_read_by_path_and_state() -> None:
    name = "test_dispatch.py::test_path[dtensor_dispatch_view]::dtensor_dispatch_view"
    text = f"{name},instruction_count,60090\n{name},instruction_count_miss,3091000\n"
    text += f"{name}_meta,instruction_count,5\n"
    assert read_counts(text) == {"view": {"hit": 60090.0, "miss": 3091000.0}}


def test_what_changed_is_told_with_what_explains_it(found: dict[str, Any]) -> None:
    lines = list(steps(found))
    assert lines[0] == "**2.9.1 → 2.10.0**"
    assert "* hits, of 1 ops: 1 faster, `add` by -48 %" in lines
    assert "* instructions of a hit: `view` -50 %" in lines
    assert "* FSDP2: yes → **no**" in lines
    assert "* the cache that answers `add`: python → **native**" in lines
    assert any("#167051" in line for line in lines), "C++ explains hits that became faster"


def test_no_change_is_explained_that_was_not_seen(found: dict[str, Any]) -> None:
    found["time"]["verdicts"]["2.9.1 2.10.0"][0][2] = "passed"
    del found["counts"]["2.9.1"]
    assert not any("#167051" in line for line in steps(found))


def test_what_was_too_noisy_to_judge_is_not_told_as_unchanged(found: dict[str, Any]) -> None:
    found["time"]["verdicts"]["2.9.1 2.10.0"][0][2] = "inconclusive"
    assert "* hits, of 1 ops: no change is confirmed; 1 too noisy to tell" in list(steps(found))


def test_a_page_without_a_mark_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="the page has no <!-- versions: upgrade -->"):
        with_tables("# Versions", found)


def marked_tables() -> Iterator[str]:
    for name in TABLES:
        yield f"<!-- versions: {name} -->\nold\n<!-- end -->\n"


def test_tables_are_put_between_their_marks_and_stay_where_they_are(found: dict[str, Any]) -> None:
    page = with_tables("".join(marked_tables()), found)
    assert "old" not in page
    assert "| `add` | 21.0 | 11.0 ↓ |" in page
    assert with_tables(page, found) == page


def test_the_picture_names_what_it_shows(found: dict[str, Any]) -> None:
    picture = chart(found)
    assert "median hit: 2.9.1 21.0 us, 2.10.0 11.0 us" in picture
    assert "<title>add</title>" in picture


def test_the_page_and_its_picture_are_what_was_found() -> None:
    renew = "python benchmarks/versions.py renews it"
    data = json.loads(FOUND.read_text())
    assert with_tables(PAGE.read_text(), data) == PAGE.read_text(), renew
    assert chart(data) == PICTURE.read_text(), renew
    assert {note.head for note in NOTES} <= set(versions_of(data)), "a note is of a version that is not there"
