"""The page of HTML with every row: what it is found by, and nothing of torch's words taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from pytest_dtdispatch.atlas.model import AtlasRow, Counts, Outcome
from pytest_dtdispatch.atlas.op_kinds import ELEMENTWISE, kind_of
from pytest_dtdispatch.atlas.whole_page import whole_page
from pytest_dtdispatch.core.forms import ATLAS_PAGE, form_of
from tests.atlas.test_page import EXAMPLE, GATHER, atlas_of, row

HOSTILE = "<script>alert(1)</script>|\x1b[31m\n\u202e" + "x" * 300


class Rows(HTMLParser):
    """Reads the rows of the table: what each is found by, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[tuple[dict[str, str | None], list[str]]] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tbody":
            self.rows.append((dict(attrs), []))
        if tag == "td" and self.rows:
            self.rows[-1][1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1][1]:
            self.rows[-1][1][-1] += data


def rows_of(*rows: AtlasRow) -> list[tuple[dict[str, str | None], list[str]]]:
    table = whole_page(atlas_of(*rows)).partition('<table id="rows"')[2].partition("</table>")[0]
    return Rows(f"<table {table}</table>").rows


def test_a_page_is_known_by_its_beginning() -> None:
    assert form_of(whole_page(atlas_of(*EXAMPLE))) == ATLAS_PAGE


def test_every_row_is_there_the_dearest_miss_first() -> None:
    names = [texts[0] for _, texts in rows_of(*EXAMPLE)]
    assert names[:3] == ["mm.default(f32[8,8]S0)@2x4", "mm.default(f32[8,8]S0)@4", "add.Tensor(f32[8,8]S0)@4"]
    assert len(names) == len(EXAMPLE)


def test_a_row_has_its_times_and_what_it_moves() -> None:
    _, texts = rows_of(row("mm.default", 2_000, 70_000, counts=GATHER))[0]
    assert texts == [
        "mm.default(f32[8,8]S0)@4",
        *("2.000", "70.00", "4.000", "2.00", "68.00"),
        "mat2 f32[16,32] S0 -> R",
        "",
    ]


def test_a_row_is_found_by_its_kind_its_mesh_and_what_is_odd() -> None:
    found = {texts[0].partition("(")[0]: attributes for attributes, texts in rows_of(*EXAMPLE)}
    assert found["add.Tensor"] == {"data-op": ELEMENTWISE, "data-states": "4"}
    assert found["is_same_size.default"]["data-marks"] == "never-hits"
    assert found["tril.default"]["data-marks"] == "unsupported"
    assert found["new.op"]["data-marks"] == "unmeasured"
    assert "redistributes" in [attributes.get("data-marks") for attributes, _ in rows_of(*EXAMPLE)]


def test_choices_name_only_what_is_there() -> None:
    text = whole_page(atlas_of(row("add.Tensor", 1_000)))
    assert "never-hits" not in text
    assert '<option value="elementwise">' in text
    assert "linear algebra" not in text


def test_nothing_is_loaded_and_nothing_of_others_is_markup() -> None:
    refused = AtlasRow(HOSTILE, HOSTILE, "4", Outcome.UNSUPPORTED, HOSTILE)
    moved = row("mm.default", 1_000, counts=Counts(1, (HOSTILE,)))
    text = whole_page(atlas_of(refused, moved))
    assert Rows(text).tags.count("script") == 1
    assert "\x1b" not in text
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assert len(rows_of(refused, moved)) == 2


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("_foreach_add_.List", "lists of tensors"),
        ("silu_backward.default", "backward"),
        ("bmm.default", "products of matrices"),
        ("sum.dim_IntList", "reductions"),
        ("copysign_.Tensor", ELEMENTWISE),
        ("new.op", ELEMENTWISE),
    ],
)
def test_an_op_has_its_kind(op: str, kind: str) -> None:
    assert kind_of(op) == kind
