"""The page of the atlas: what it says, sorted by cost, with nothing of torch's words taken for markup."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow, Counts, Outcome
from pytest_dtdispatch.atlas.page import FOLD_ABOVE, MOST_EXPENSIVE, atlas_document
from pytest_dtdispatch.core.environment import Environment
from pytest_dtdispatch.core.forms import ATLAS, form_of
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.report.markdown import document_text

ENVIRONMENT = Environment("2.13.0+cpu", "abc123", "", "cpu", "", "fake", 8, 1, "native+python")
GATHER = Counts(1, ("mat2 f32[16,32] S0 -> R",), (("all_gather", 1),))


def row(
    op: str, miss_us: int | None = None, hit_ns: int = 7_000, mesh: str = "4", counts: Counts | None = None
) -> AtlasRow:
    states = {State.MISS: miss_us and miss_us * 1_000, State.COLD: miss_us and miss_us * 2_000}
    samples = [Samples(state, (ns,)) for state, ns in states.items() if ns]
    samples += [Samples(State.HIT if miss_us else State.CALL, (hit_ns,)), Samples(State.LOCAL, (2_000,))]
    signature = f"{op}(f32[8,8]S0)@{mesh}"
    measurement = Measurement(
        signature, signature, op, mesh, Contains.DISPATCH, 1, Figures(5, tuple(samples))
    )
    return AtlasRow(
        op, signature, mesh, Outcome.MEASURED, "", (measurement, measurement), counts or Counts(1)
    )


def atlas_of(*rows: AtlasRow) -> Atlas:
    command = "dtdispatch atlas --output a.md"
    return Atlas(rows, ENVIRONMENT, "A CPU", 2, "3.11.7", "2026-11-21", command)


def page(*rows: AtlasRow) -> str:
    return document_text(atlas_document(atlas_of(*rows), "a.html"))


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n\n")[2].partition("\n\n## ")[0].rstrip("\n")


REFUSED = AtlasRow("tril.default", "tril.default(f32[8]P)@4", "4", Outcome.UNSUPPORTED, "RuntimeError: a | b")
SPLIT = AtlasRow("selu.default", "selu.default(f32[8]R)@4", "4", Outcome.SPLIT, "into elu.default")
NO_ARGUMENTS = AtlasRow("new.op", "new.op", "", Outcome.NO_ARGUMENTS, "TypeError: no")
EXAMPLE = (
    row("add.Tensor", 1_000),
    row("mm.default", 2_000, 70_000, counts=GATHER),
    row("mm.default", 8_000, mesh="2x4", counts=Counts(3)),
    row("is_same_size.default"),
    REFUSED,
    SPLIT,
    NO_ARGUMENTS,
)


def test_a_page_is_known_by_its_beginning() -> None:
    assert form_of(page()) == ATLAS


def test_the_page_says_how_much_it_covers_and_where_it_was_taken() -> None:
    text = page(*EXAMPLE)
    assert "4 signatures of 3 ops, of 6 ops in the registries of this torch." in text
    assert section(text, "Where these figures were taken").startswith(
        "* CPU: A CPU, 2 cores, torch on 1 thread\n"
        "* torch 2.13.0+cpu, build abc123, native+python caches; Python 3.11.7\n"
        "* process group: fake, 8 ranks; device: cpu\n"
        "* 2026-11-21, `dtdispatch atlas --output a.md`\n"
        "* each signature was visited 2 times, more than a minute apart in a whole atlas, and up to 5 times "
        "where the visits disagreed: 2 misses, 2 cold calls and 50 hits a visit; of each state the visit is "
        "shown whose median is the lowest, as what else runs on a machine only ever adds; it is unconfirmed "
        "where no other visit came within 20 %"
    )


def test_the_page_says_how_far_the_visits_differ() -> None:
    quiet, noisy = row("add.Tensor", 1_000), row("add.Tensor", 1_500)
    rows = [
        dataclasses.replace(quiet, visits=quiet.visits[:1] + other.visits[:1])
        for other in (quiet, quiet, noisy)
    ]
    lines = section(page(*rows), "Where these figures were taken").splitlines()
    assert lines[-2:] == [
        "* highest over lowest median of the visits, miss: 1.00 or less for one signature in two, 1.40 or "
        "less for nine in ten",
        "* highest over lowest median of the visits, hit: 1.00 or less for one signature in two, 1.00 or "
        "less for nine in ten",
    ]


def test_kinds_of_ops_are_summed_up() -> None:
    lines = section(page(*EXAMPLE), "By kind of op").splitlines()
    assert "| elementwise | 3 | 3 | 1.000 | 7.00 | 0 | 0 | 0 |" in lines
    assert "| products of matrices | 1 | 2 | 5.000 | 38.50 | 1 | 0 | 0 |" in lines
    assert "| indexing and sorting | 1 | 1 | - | - | 0 | 0 | 1 |" in lines


def test_each_question_has_its_section() -> None:
    text = page(*EXAMPLE)
    assert "| `is_same_size.default(f32[8,8]S0)@4` | - | 7.00 | never asks" in section(
        text, "Ops that never hit"
    )
    moved = section(text, "Ops that redistribute silently")
    assert "1 signatures of 1 ops" in moved
    assert "| `mm.default(f32[8,8]S0)@4` | `mat2 f32[16,32] S0 -> R` | `all_gather` | 1 |" in moved
    refused = section(text, "What torch does not support")
    assert r"| `tril.default(f32[8]P)@4` | RuntimeError: a \| b | 1 |" in refused
    other = section(text, "What was not measured")
    assert "* no arguments made: 1" in other
    assert "* torch does not support it" not in other
    assert "| 4 | 3 | 1.500 |" in section(text, "By mesh")


def test_the_most_expensive_are_listed_mesh_by_mesh_and_each_op_once() -> None:
    rows = [row(f"op{n}.default", 1_000 + n) for n in range(2 * MOST_EXPENSIVE)]
    text = section(
        page(*rows, row("op0.default", 9_000), row("mm.default", 8_000, mesh="2x4")),
        "The most expensive misses",
    )
    line, grid = text.partition("On mesh 2x4:")[::2]
    ops = re.findall(r"^\| `(\w+)\.default\(", line, re.MULTILINE)
    assert ops == ["op0", *(f"op{n}" for n in range(2 * MOST_EXPENSIVE - 1, MOST_EXPENSIVE, -1))]
    assert re.findall(r"^\| `(\w+)\.default\(", grid, re.MULTILINE) == ["mm"]


def test_what_no_second_visit_found_is_noted_and_is_not_among_the_most_expensive() -> None:
    once = dataclasses.replace(row("mm.default", 9_000), visits=row("mm.default", 9_000).visits[:1])
    text = page(once, row("add.Tensor", 1_000))
    expensive = section(text, "The most expensive misses")
    assert "add.Tensor" in expensive
    assert "mm.default" not in expensive


def test_of_an_op_the_signature_that_moves_most_is_shown_with_how_many_do() -> None:
    counts = Counts(1, ("self f32[8] S0 -> R", "other f32[8] S1 -> R"))
    rows = (row("mm.default", 1_000, counts=GATHER), row("mm.default", 900, mesh="2x4", counts=counts))
    moved = section(page(*rows), "Ops that redistribute silently")
    assert "| `mm.default(f32[8,8]S0)@2x4` | `self f32[8] S0 -> R`; `other f32[8] S1 -> R` |" in moved
    assert "| 2 |" in moved
    assert "@4" not in moved


def test_equal_moves_are_written_once() -> None:
    counts = Counts(1, GATHER.moves * 3, (("all_gather", 3),))
    moved = section(page(row("mm.default", 1_000, counts=counts)), "Ops that redistribute silently")
    assert "| `mat2 f32[16,32] S0 -> R` (3x) | `all_gather` (3x) | 1 |" in moved


def test_a_move_without_a_collective_is_no_communication() -> None:
    counts = Counts(1, ("other f32[8] R -> S0",))
    moved = section(page(row("add.Tensor", 1_000, counts=counts)), "Ops that redistribute silently")
    assert "| none: a local slice | 1 |" in moved


@pytest.mark.parametrize("count", [FOLD_ABOVE, FOLD_ABOVE + 1])
def test_long_tables_are_folded(count: int) -> None:
    refused = [
        AtlasRow(f"a.b{n}", f"a.b{n}(f32[8]P)@4", "4", Outcome.UNSUPPORTED, "no") for n in range(count)
    ]
    text = section(page(*refused), "What torch does not support")
    assert ("<details>" in text) == (count > FOLD_ABOVE)
    assert text.count("| no | 1 |") == count


def test_a_page_of_nothing_measured_has_no_figures() -> None:
    text = page(REFUSED)
    assert "0 signatures of 0 ops" in text
    assert "None: every signature that was measured" in section(text, "Ops that never hit")
    assert "None." in section(text, "Ops that redistribute silently")


def test_every_table_has_as_many_cells_in_each_line() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", page(*EXAMPLE), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table
