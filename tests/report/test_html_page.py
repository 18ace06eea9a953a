"""The page of a run: whole, escaped, in order, and readable without a script."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pytest_dtdispatch.core.measurement import Contains, Samples, State
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.bars import BarPart, StackedBar
from pytest_dtdispatch.report.document import Document, Tone, one_line, paragraph
from pytest_dtdispatch.report.html_page import html_page, in_order
from pytest_dtdispatch.report.reported_run import ReportedDocument, ReportedGate, ReportedRun
from tests.reported_runs import ADD, HITS, HOSTILE, MISSES, hostile_run, profiled_run, row, run_of

VOID = {"meta", "link", "input", "br", "wbr"}
BAR = StackedBar("train", "10 us", (BarPart("local", 0.4, "4 us"), BarPart("unexplained", 0.6, "6 us", True)))
NAME = f"t.py::test_a::{ADD}"
FIGURES = (
    ("base_ns", 7000.0), ("head_ns", 9100.0), ("ratio", 1.3), ("ratio_low", 1.2), ("ratio_high", 1.4),
    ("threshold_percent", 10.0), ("base_samples", 50.0), ("head_samples", 50.0),
)  # fmt: skip
REGRESSED = RowVerdict(f"{NAME}::hit", Verdict.REGRESSED, FIGURES, "find what slowed it", "median:10%")
FAILED = ReportedGate("base.json", (REGRESSED,), True, Document((one_line("gate: failed"),)), (REGRESSED,))


class Page(HTMLParser):
    """What a browser makes of a page: balanced elements, their attributes, and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: dict[str, str] = {}
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
            self.said[self.open[-1]] = self.said.get(self.open[-1], "") + data
            self.text += data if self.open[-1] not in ("style", "script") else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(*runs: ReportedRun) -> Page:
    return Page(html_page(runs))


def of_budget(kind: str = "budget") -> ReportedDocument:
    return ReportedDocument(kind, Document((BAR, paragraph(f"about {kind}", Tone.NOTICE))))


def test_sections_stand_in_their_order() -> None:
    run = run_of(row(), documents=(of_budget(), of_budget("steps")), gates=(FAILED,))
    sections = [attributes["id"] for attributes in page_of(run, run).all("section")]
    assert sections == ["verdicts", "budget", "signatures", "course", "kind-steps"]


def test_verdicts_come_first_with_their_change_and_interval() -> None:
    page = page_of(run_of(row(), gates=(FAILED,)))
    assert "Failed: 1 regressed" in page.text
    assert "+30.0%7 us to 9.1 us" in page.text
    assert "from +20.0% to +40.0%, at most +10.0%" in page.text
    assert "find what slowed it" in page.text
    assert page.all("tbody")[-1]["data-marks"] == "regressed"


def test_only_our_script_and_style_run() -> None:
    page = page_of(hostile_run())
    [policy] = [each["content"] for each in page.all("meta") if each.get("http-equiv")]
    for name in ("style", "script"):
        assert len(page.all(name)) == 1
        digest = base64.b64encode(hashlib.sha256(page.said[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none';")


def test_nothing_is_loaded_from_anywhere() -> None:
    text = html_page([run_of(row(), documents=(of_budget(),), gates=(FAILED,))])
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)""", text)
    assert not re.findall(r"https?://|url\(|@import", text)


def test_hostile_names_stay_texts() -> None:
    page = page_of(hostile_run(), hostile_run())
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "iframe", "object", "a-b"}
    assert "<script>alert(1)</script>" in page.text
    for letter in ("\x1b", "\x07", "\u202e", "\r"):
        assert letter not in page.text
    assert {attributes["href"] for attributes in page.all("a")} <= {
        f"#{attributes.get('id')}" for _, attributes in page.tags
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_one_row(name: str) -> None:
    page = page_of(run_of(row(name), test=name))
    assert len(page.all("tbody")) == 1
    assert max(map(len, page.text.split())) < 11_000


def test_every_head_and_chart_says_what_it_is() -> None:
    ranks = Samples(State.HIT, (9,), by_rank=((0, (7, 7)), (1, (9, 9))))
    run = run_of(row(), row("b", ranks), documents=(of_budget(),), gates=(FAILED,))
    page = page_of(run, run)
    assert page.all("html")[0]["lang"] == "en"
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    charts = [each for each in page.all("svg") if each.get("role") == "img"]
    assert len(charts) == html_page([run, run]).count('<svg role="img"')
    assert html_page([run, run]).count("<title>") > len(charts)  # one each, and one of the page
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_figures_stand_in_the_units_of_the_terminal_with_their_noise() -> None:
    noisy = Samples(State.MISS, (900_000, 5_000_000, 900_000, 5_000_000, 5_000_000, 5_000_000, 900_000))
    page = page_of(run_of(row(ADD, noisy, Samples(State.HIT, HITS), Samples(State.LOCAL, (1500,) * 6))))
    cells = {each["data-title"]: each for each in page.all("td") if each.get("data-title")}
    assert {"miss ms", "hit us", "local us", "overhead us", "miss/hit"} <= set(cells)
    assert cells["miss ms"]["class"] == "num noisy"
    assert cells["hit us"]["class"] == "num"
    assert "proved, noisy" in page.text
    assert "1 us100 us10 ms" in page.text


def test_rows_that_never_miss_have_no_column_of_misses() -> None:
    page = page_of(run_of(row("is_same_size(f32[8]R)@4", Samples(State.CALL, HITS))))
    titles = [each.get("data-title") for each in page.all("td")]
    assert "miss ms" not in titles
    assert "hit us" in titles


def test_a_run_of_numbers_alone_is_a_page() -> None:
    page = page_of(ReportedRun(documents=(of_budget("steps"),)))
    assert "Counts of steps" in page.text
    assert "No signature or call was measured." not in page.text
    assert "No signature or call was measured." in page_of(ReportedRun()).text


def test_the_course_follows_rows_that_come_and_go() -> None:
    runs = [
        replace(
            run_of(*(row(f"op{n}(f32[8]R)@4") for n in range(start, start + 3))),
            taken=f"2026-01-{start:02}",
        )
        for start in range(1, 21)
    ]
    page = page_of(*in_order(runs[::-1]))
    assert "Course over 20 runs" in page.text
    assert page.text.count("3 of 20 runs") == 2 * 18
    assert page.text.count("not in the last run") == 2 * 19
    assert "3 rows, the dearest" in page.text


def test_runs_of_other_machines_are_named() -> None:
    first = replace(run_of(), taken="1", environment={"CPU": "old", "pytest-dtdispatch": "0.1"})
    last = replace(run_of(), taken="2", environment={"CPU": "new", "pytest-dtdispatch": "0.2"})
    text = page_of(first, last).text
    assert text.count("may not compare: CPU") == 1


def test_a_profile_lists_functions() -> None:
    page = page_of(profiled_run("call", "<b>add</b>"))
    assert "1111.0 %<b>add</b>" in page.text


def test_rows_of_other_kinds_show_their_samples_with_their_kind() -> None:
    compared = replace(row("x", Samples(State.CALL, HITS)), contains=Contains.COMPARED)
    page = page_of(run_of(row(), compared, documents=(of_budget("compared"),)))
    assert "samples of x in t.py::test_a" in page.text
    assert "1 row, the dearest" in page.text


def test_a_tenth_of_five_hundred_signatures_is_a_tenth_of_five_megabytes() -> None:
    many = tuple(n * 13 % 997 + 6_000 for n in range(200))
    samples = (Samples(State.MISS, MISSES * 4), Samples(State.HIT, many), Samples(State.LOCAL, many))
    text = html_page([run_of(*(row(f"add.Tensor(f32[{n},512]S0)@4", *samples) for n in range(50)))])
    assert len(text.encode()) < 500_000
