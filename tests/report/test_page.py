"""The page of a run: well-formed, escaped, ordered, and readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.comparing.model import ComparedVariant
from pytest_dtdispatch.core.events import Cell, Part
from pytest_dtdispatch.core.measurement import Contains, Samples, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.report import page as page_module
from pytest_dtdispatch.report.document import (
    CellContent,
    Column,
    Document,
    Group,
    Line,
    Span,
    StackedBar,
    Table,
    Tone,
    Verbatim,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import ReportedRun
from tests.reported_runs import (
    ADD,
    ADVICE,
    BUDGET,
    COUNTED,
    HITS,
    HOSTILE,
    MISSES,
    OWN,
    Shown,
    hostile_run,
    profiled_run,
    results_of,
    row,
    run_of,
)
from tests.row_ids import row_id

VOID = {"meta", "link", "input"}
BAR = StackedBar("train", "10 us", (("local 4 us", 0.4, 0), ("unexplained 6 us", 0.6, 11)), has_rest=True)
HIT = RowId("t.py::test_a", ADD, "hit")
REGRESSED = RowVerdict(HIT, Verdict.REGRESSED, None, "find what slowed it", "median:10%")
FAILED = Judgement((REGRESSED,), "base.json", (REGRESSED,))


class Page(HTMLParser):
    """Parser of a page like a browser: balanced elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data
            self.text += data if self.open[-1] not in ("style", "script") else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(run: ReportedRun) -> Page:
    return Page(html_page(run))


@pytest.fixture(autouse=True, scope="module")
def own_kind() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "own", OWN)
        yield


def own(*blocks: Any) -> dict[str, Any]:
    """Return results whose table has these blocks."""
    return results_of(Shown("x", Document(blocks or (BAR, paragraph("about it", Tone.NOTICE)))))


def test_sections_are_in_order() -> None:
    run = run_of(row(), results=results_of(COUNTED, BUDGET), gates=(FAILED,))
    page = page_of(run)
    titles = re.findall(r"<h2>(.*?)</h2>", html_page(run))
    of_steps = ("Budget of each step", "Signatures and calls", "Counts of each step")
    assert titles == ["Verdicts against base.json", "Worst", "Advice", *of_steps]
    assert [link["href"] for link in page.all("a")[1:]] == [f"#s{n}" for n in range(1, 7)]
    assert page.text.index("Failed: 1 regressed") < page.text.index("find what slowed it")


def test_ungated_page_begins_with_worst_line_of_the_terminal() -> None:
    run = run_of(row(), row("mm(f32[8]R)@4", calls=9), results=results_of(BUDGET, COUNTED))
    documents = run.documents()
    assert documents["budget"].worst == "worst: dispatch, 60% of train"
    first, _, rest = html_page(run).partition("<h2>Budget of each step</h2>")
    assert '<h2>Worst</h2>\n<p class="in0">worst: dispatch, 60% of train</p>' in first
    assert "worst: " not in rest
    assert documents["measured"].worst in page_of(replace(run, results={})).text


def test_advice_is_listed_once_by_change() -> None:
    without_time = replace(ADVICE, ns=0.0, share=0.0)
    elsewhere = replace(ADVICE, seen="y redistributed 2 times", ns=2e3)
    results = results_of(
        replace(BUDGET, advice=(ADVICE, elsewhere)), replace(COUNTED, advice=(without_time,))
    )
    text = page_of(run_of(results=results)).text
    _, _, listed = text.partition("Advice\n")
    assert text.count(ADVICE.change) == 1
    assert text.count(ADVICE.seen) == 1
    assert listed.index("about 9 us") < listed.index(elsewhere.seen)


def test_same_finding_in_two_tests_has_both_savings() -> None:
    small = replace(ADVICE, ns=2e3)
    budgets = {
        "a.py::test": (replace(BUDGET, advice=(ADVICE,)),),
        "b.py::test": (replace(BUDGET, advice=(small,)),),
    }
    _, _, listed = page_of(ReportedRun(results={"budget": budgets})).text.partition("Advice\n")
    assert listed.count(ADVICE.change) == 1
    assert listed.index("about 9 us") < listed.index("a.py::test") < listed.index("about 2 us")
    assert listed.index("about 2 us") < listed.index("b.py::test")


def test_advice_comes_only_from_results() -> None:
    run = run_of(row("seen, in each step"), results=own(paragraph("a"), paragraph("2 blocks, in each step")))
    assert "<h2>Advice" not in html_page(run)


def test_parts_of_a_budget_are_never_folded() -> None:
    cells = tuple(Cell(part, "", None, 100.0, 1.0) for part in Part)
    page = page_of(run_of(results=results_of(replace(BUDGET, cells=cells, measured_ns=1e6, steps=5))))
    assert not page.all("details")
    assert len(page.all("tfoot")) == 1


def test_bars_are_linear_from_zero() -> None:
    rows = [
        row(
            f"add(f32[{n}]R)@4",
            Samples(State.MISS, (n * 1_000_000,) * 6),
            Samples(State.HIT, (n * 1000,) * 9),
        )
        for n in (4, 1)
    ]
    bars = [each for each in page_of(run_of(*rows)).all("rect") if each["class"] in ("hit", "miss")]
    assert [(bar["x"], bar["width"]) for bar in bars] == [("0.00%", "100.00%")] * 2 + [
        ("0.00%", "25.00%")
    ] * 2


def test_single_row_needs_no_search() -> None:
    assert not page_of(run_of(row())).all("form")


def test_passed_gate_is_at_the_top() -> None:
    passed = RowVerdict(HIT, Verdict.PASSED)
    text = html_page(run_of(gates=(Judgement((passed,), "base.json"),)))
    assert text.index("Passed: 1 passed") < text.index("<h2>Signatures and calls</h2>")
    assert "worst: " not in text


def test_entries_after_ten_are_folded_on_the_page() -> None:
    verdicts = tuple(
        RowVerdict(row_id(f"row {n}"), Verdict.REGRESSED, None, f"remedy {n}") for n in range(12)
    )
    gate = Judgement(verdicts, "base.json", verdicts, to_paste=("row 11,1",))
    page = page_of(run_of(*(row(f"add(f32[{n}]R)@4") for n in range(15)), gates=(gate,)))
    assert len(page.all("details")) == 2
    assert "2 more" in page.text
    assert page.text.index("5 more") < page.text.index("add(f32[14]R)@4")
    assert page.text.index("2 more") < page.text.index("remedy 11") < page.text.index("row 11,1")


def test_only_items_are_collapsed() -> None:
    """The remedy below "and 44 more new rows" was collapsed, under the number of all collapsed items."""
    items = [one_line(Span(f"item {n}"), " of two spans", indent=1) for n in range(14)]
    below = paragraph("a deeper line", indent=2)
    blocks = (*items[:12], below, one_line("and others", indent=1), below, *items[12:])
    page = page_of(ReportedRun(results=own(*blocks)))
    assert re.findall(r"(\d+) more", page.text) == ["2", "2"]
    visible = re.sub(r"(?s)<details>.*?</details>", "", html_page(ReportedRun(results=own(*blocks))))
    assert [visible.count(text) for text in ("of two spans", "a deeper line")] == [10, 1]


def test_wide_table_omits_optional_columns() -> None:
    titles = [f"c{n}" for n in range(13)]
    line = Line("l", {Column(title): f"cell {title}" for title in titles})
    table = Table((Group("", (line,)),), optional=("c4", "none", "c2", "c1"))
    page = page_of(ReportedRun(results=own(table)))
    assert re.findall(r"cell (c\d+)", page.text) == [title for title in titles if title not in ("c4", "c2")]


def test_long_signature_is_shortened_and_expandable() -> None:
    label = f"cat.default([{', '.join(['f32[64,64]S0'] * 12)}])@4"
    page = page_of(run_of(row(label)))
    assert len(page.all("summary")) == 1
    assert min(map(len, page.texts["bdi"].split(label))) < 90
    assert page.text.count(label) == 2  # also in the line on the worst row


def test_scatter_is_labeled_as_an_upper_bound() -> None:
    page = page_of(run_of(row(ADD, Samples(State.HIT, (100, 100, 100, 150, 110, 120, 100, 100)))))
    assert "up to +%" in page.text
    assert "+-%" not in page.text


def test_rows_can_be_filtered_by_verdict_and_noise() -> None:
    noisy = row("mm(f32[8]R)@4", Samples(State.MISS, (900_000, 5_000_000) * 5))
    page = page_of(run_of(row(), noisy, gates=(FAILED,)))
    marks = [body["data-marks"] for body in page.all("tbody") if "data-marks" in body]
    assert sorted(map(str, marks)) == ["noisy", "regressed"]
    assert "noisy (1)" in page.text
    assert [form["id"] for form in page.all("form")] == ["controls"]


def test_page_loads_nothing_and_allows_only_own_script() -> None:
    page = page_of(hostile_run())
    [policy] = [each["content"] for each in page.all("meta") if each.get("http-equiv")]
    for name in ("style", "script"):
        assert len(page.all(name)) == 1
        digest = base64.b64encode(hashlib.sha256(page.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none';")
    text = html_page(run_of(row(), results=own(), gates=(FAILED,)))
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)|https?://|url\(|@import""", text)


def test_hostile_names_are_escaped() -> None:
    page = page_of(hostile_run())
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "a-b"}
    assert "<script>alert(1)</script>" in page.text
    assert not set(page.text) & set("\x1b\x07\u202e\r")
    ids = {f"#{attributes.get('id')}" for _, attributes in page.tags}
    assert {attributes["href"] for attributes in page.all("a")} <= ids


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_one_row(name: str) -> None:
    page = page_of(run_of(row(name), test=name))
    assert len(page.all("tbody")) == 1
    assert max(map(len, page.text.split())) < 11_000


def every_block(text: str) -> tuple[Any, ...]:
    cell = (Span(text, Tone.CODE), Span(text, Tone.BAD))
    cells: dict[Column, CellContent] = {Column(text, "us"): text, Column("why"): cell}
    lines = (Line(text, cells, text, (text,), Tone.NOTICE),)
    table = Table((Group(text, lines, text), Group("", lines)), status_title="proof")
    return (paragraph(text), one_line(*cell), Verbatim((text,)), table, StackedBar(text, text, ()))


@given(st.text() | st.sampled_from(["<script>alert(1)</script>", "</td>&amp;\x1b[31m", "\" onload='x'"]))
def test_custom_blocks_are_escaped(text: str) -> None:
    page = page_of(ReportedRun(results=own(*every_block(text))))
    assert {tag for tag, _ in page.tags} >= {"pre", "table", "figure", "ul"}
    assert len(page.all("script")) == 1
    if text.isprintable():
        assert page.text.count(text) >= 10


def test_headers_and_charts_have_accessible_labels() -> None:
    run = run_of(row(), results=own(), gates=(FAILED,))
    page = page_of(run)
    assert page.all("html")[0]["lang"] == "en"
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    assert len(page.all("title")) == 1 + len(page.all("svg")) + len(BAR.parts)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_page_has_terminal_columns_with_bars() -> None:
    samples = (Samples(State.MISS, MISSES), Samples(State.HIT, HITS), Samples(State.LOCAL, (1500,) * 6))
    page = page_of(run_of(row(ADD, *samples)))
    assert all(head in page.text for head in ("miss ms", "hit us", "local us", "overhead us", "miss/hit"))
    assert "local 1.5 us, hit 6.9 us, miss 900 us" in page.text
    assert [each["class"] for each in page.all("rect")] == ["local", "hit", "miss"]
    assert "hit up to 6.9 us, miss up to 900 us" in page.text
    profile = page_of(profiled_run("call", "<b>add</b>"))
    assert profile.text.count("profile of a miss: ") == 2  # the heading, and again above three rows
    _, kind, figures = profile.text.partition("profile of a miss: ")
    assert kind
    assert figures.strip().endswith("1111.0")


def test_run_with_only_numbers_has_a_page() -> None:
    page = page_of(ReportedRun(results=results_of(COUNTED)))
    assert "Counts of each step" in page.text
    assert "No signature or call was measured." not in page.text
    assert "No signature or call was measured." in page_of(ReportedRun()).text


def test_rows_of_other_kinds_are_not_among_signatures() -> None:
    compared = replace(row("x", Samples(State.CALL, HITS)), contains=Contains.COMPARED)
    page = page_of(run_of(row(), results=results_of(ComparedVariant("x", "x", "compare", compared))))
    assert len([body for body in page.all("tbody") if "data-marks" in body]) == 1


def test_missing_jinja_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DtDispatchError, match=r"pip install pytest-dtdispatch\[report\]$"):
        html_page(run_of())


def test_page_of_hundred_signatures_is_below_200_kb() -> None:
    samples = (Samples(State.MISS, MISSES), Samples(State.HIT, HITS), Samples(State.LOCAL, HITS))
    text = html_page(run_of(*(row(f"add.Tensor(f32[{n},512]S0)@4", *samples) for n in range(100))))
    assert len(text.encode()) < 200_000


def style_sheet() -> str:
    return Path(page_module.__file__).with_name("page.css").read_text(encoding="utf-8")


def test_cells_of_all_tables_wrap_on_a_narrow_screen() -> None:
    _, _, narrow = style_sheet().partition("@media (max-width: 900px)")
    [selectors] = re.findall(r"([^{}]+){[^{}]*white-space: normal", narrow)
    assert {"tbody td", ".r", ".rows .r"} <= {each.strip() for each in selectors.split(",")}


def test_parts_of_a_step_have_colors() -> None:
    styles = style_sheet()
    missing = [str(part) for number, part in enumerate(Part) if f".p{number} {{" not in styles]
    assert missing == []
