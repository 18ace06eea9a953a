"""Versions side by side: a short page of changes, a page of every row, and the data of both."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.atlas.atlas_file import AtlasRecord, record_text
from pytest_dtdispatch.atlas.changes import AtlasComparison, ChangeKind, compare_atlases
from pytest_dtdispatch.atlas.changes_page import LARGEST, MOST_NAMED, changes_document
from pytest_dtdispatch.atlas.model import Outcome
from pytest_dtdispatch.atlas.versions_data import NOT_TRIED, versions_text
from pytest_dtdispatch.atlas.versions_page import versions_page
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.forms import ATLASES, ATLASES_DATA, ATLASES_PAGE, form_of
from pytest_dtdispatch.report.markdown import document_text
from tests.atlas.test_joining import both_meshes, entry, record, refused
from tests.atlas.test_page import section
from tests.atlas.test_whole_page import HOSTILE, Rows

OLD = record("2.9.1+cu128", *both_meshes(), entry("add.Tensor"), refused("tril.default"), entry("old.op"))
NEW = record(
    "2.10.0+cu128",
    *both_meshes(hit=(14e3, 14.1e3)),
    entry("add.Tensor", moves=("self S0 -> R",), collectives={"all_gather": 1}),
    entry("tril.default"),
    entry("new.op"),
)
LAST = record("2.11.0+cu130", *both_meshes(hit=(14e3, 14.1e3)), entry("new.op", "f32[8,8]S1"))
EXAMPLE = compare_atlases((OLD, NEW, LAST))


def page(compared: AtlasComparison) -> str:
    return document_text(changes_document(compared, "v.html", "v.json"))


def data(compared: AtlasComparison) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(versions_text(compared))
    return read


def whole(compared: AtlasComparison) -> str:
    return versions_page(compared, versions_text(compared), "v.json")


def embedded(text: str) -> Any:
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def test_each_file_is_known_by_its_beginning() -> None:
    assert form_of(page(EXAMPLE)) == ATLASES
    assert form_of(whole(EXAMPLE)) == ATLASES_PAGE
    assert form_of(versions_text(EXAMPLE)) == ATLASES_DATA


def test_the_page_names_the_versions_and_what_they_have() -> None:
    text = page(EXAMPLE)
    assert "What became of 7 signatures of 5 ops from torch 2.9.1 to 2.11.0." in text
    versions = section(text, "The versions")
    assert "medians over the 2 that have a miss and a hit on each" in versions
    assert "| 2.9.1 | 4 | 5 | 4 | 0 | 0 | 1 | 1.000 | 7.00 |" in versions
    assert "| 2.10.0 | 4 | 5 | 5 | 1 | 0 | 0 | 1.000 | 14.00 |" in versions


def test_the_page_says_what_changed_between_neighbours() -> None:
    text = section(page(EXAMPLE), "2.9.1 to 2.10.0")
    for line in ("has a rule now", "has no rule any more", "supported now", "redistributes now"):
        assert f"| {line} | 1 | 1 |" in text
    assert "| slower hit | 1 | 2 |" in text
    assert text.count("mm.default(f32[8,8]S0)") == 1  # each op once
    assert "| `mm.default(f32[8,8]S0)@4` | 7.00 | 14.00 | 2.0x |" in text
    assert "* has a rule now: `new.op`" in text


def test_nothing_is_said_of_neighbours_that_are_equal() -> None:
    same = compare_atlases((OLD, record("2.9.2", *OLD.rows)))
    assert section(page(same), "2.9.1 to 2.9.2").endswith("shifted by 1.00x.\n\nNothing changed.")


def test_the_page_says_why_times_are_not_compared() -> None:
    other = compare_atlases((OLD, record("2.9.2", *OLD.rows, cpu="Another CPU")))
    text = section(page(other), "2.9.1 to 2.9.2")
    assert text.startswith("Times are not compared: they were taken with another CPU.")


def test_every_op_is_named_with_the_versions_that_have_a_rule_for_it() -> None:
    text = section(page(EXAMPLE), "Where each op has a rule")
    assert "<summary>1 op: all versions</summary>\n\n`mm.default`" in text
    assert "<summary>2 ops: 2.9.1 to 2.10.0</summary>\n\n`add.Tensor`, `tril.default`" in text
    assert "<summary>1 op: 2.10.0 to 2.11.0</summary>\n\n`new.op`" in text
    assert "<summary>1 op: 2.9.1</summary>\n\n`old.op`" in text


def test_long_lists_are_cut_and_say_by_how_much() -> None:
    many = MOST_NAMED + 3
    slow = [one for n in range(many) for one in both_meshes(op=f"op{n}.default", hit=(14e3 + n, 14.1e3))]
    fast = [one for n in range(many) for one in both_meshes(op=f"op{n}.default", propagations=2)]
    text = section(
        page(compare_atlases((record("2.9.1", *fast), record("2.10.0", *slow)))), "2.9.1 to 2.10.0"
    )
    assert text.count("| 2.0x |") == LARGEST
    assert f"| `op{many - 1}.default" in text
    assert "and 3 more" in text


def test_the_data_have_every_row_of_every_version() -> None:
    read = data(EXAMPLE)
    rows = {row["signature"]: row for row in read["rows"]}
    assert [version["heading"] for version in read["versions"]] == ["2.9.1", "2.10.0", "2.11.0"]
    times = {"miss_ns": 1_000_000, "miss_spread": 1.1, "hit_ns": 7_000, "hit_spread": 1.01}
    moved = {**times, "moves": ["self S0 -> R"], "collectives": {"all_gather": 1}}
    assert rows["add.Tensor(f32[8,8]S0)@4"]["on"] == [times, moved, None]
    assert rows["add.Tensor(f32[8,8]S0)@4"]["changes"] == [[1, ChangeKind.MOVES], [2, ChangeKind.NO_RULE]]
    assert rows["new.op(f32[8,8]S0)@4"]["on"] == [None, times, {"outcome": NOT_TRIED}]
    assert rows["tril.default(f32[8,8]S0)@4"]["on"][0] == {
        "outcome": Outcome.UNSUPPORTED,
        "message": "RuntimeError: no",
    }
    assert rows["mm.default(f32[8,8]S0)@2x4"]["changes"] == [[1, ChangeKind.SLOWER_HIT, 2.0]]


def test_the_page_of_all_rows_has_the_data_and_loads_nothing() -> None:
    text = whole(EXAMPLE)
    assert embedded(text) == data(EXAMPLE)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assert 'href="v.json"' in text
    assert '<option value="slower hit">' in text
    assert '<option value="faster hit">' not in text  # only what is there is offered


def test_the_script_knows_each_outcome_by_its_words() -> None:
    text = whole(EXAMPLE)
    others = [outcome for outcome in Outcome if outcome is not Outcome.MEASURED]
    assert not [outcome for outcome in others if f'"{outcome}":' not in text]


def test_nothing_of_others_is_markup() -> None:
    row = entry(message=HOSTILE, moves=(HOSTILE,), signature=HOSTILE, mesh=HOSTILE)
    environment = replace(OLD.environment, torch_version=HOSTILE, cache_interface=HOSTILE)
    record_of_others = record("2.9.1", replace(row, op=HOSTILE), cpu=HOSTILE, date=HOSTILE, load=HOSTILE)
    other = record("1.0", refused(HOSTILE), environment=environment, cpu=HOSTILE)
    compared = compare_atlases((record_of_others, other))
    text = whole(compared)
    assert Rows(text).tags.count("script") == 2  # the data, and ours
    assert "\x1b" not in text
    assert embedded(text)["rows"]
    assert not re.search(r"(?<![\\`])<script", page(compared))  # escaped, or code
    assert "\x1b" not in page(compared)


def written(folder: Path, *records: AtlasRecord) -> list[str]:
    """Write atlases, and give their paths."""
    paths = [folder / f"{number}.json" for number in range(len(records))]
    for path, one in zip(paths, records, strict=True):
        path.write_text(record_text(one))
    return list(map(str, paths))


def test_the_command_writes_three_files_and_writes_over_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, NEW, OLD)
    output = tmp_path / "versions.md"
    for _ in range(2):
        assert main(["atlas-versions", *paths, "--output", str(output)]) == 0
        names = ", ".join(str(output.with_suffix(suffix)) for suffix in (".md", ".html", ".json"))
        assert capsys.readouterr().out == f"{names}: 6 rows of torch 2.9.1, 2.10.0\n"
    assert "`versions.html`" in output.read_text()
    assert "versions.json" in output.with_suffix(".html").read_text()


def test_atlases_of_one_version_are_one_or_several_as_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, OLD, NEW, OLD)
    output = ["--output", str(tmp_path / "versions.md")]
    assert main(["atlas-versions", *paths, *output, "--merge"]) == 0
    assert capsys.readouterr().out.endswith(": 6 rows of torch 2.9.1, 2.10.0\n")
    assert main(["atlas-versions", *paths, *output]) == 0
    assert capsys.readouterr().out.count(" 2.9.1") == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda folder: written(folder, OLD),
            "compares atlases of two versions or more, and was given one",
        ),
        (
            lambda folder: [*written(folder, OLD, OLD), "--merge"],
            "compares atlases of two versions or more, and was given one",
        ),
        (lambda folder: [*written(folder, OLD), str(folder / "no.json")], "cannot be read: No such file"),
        (lambda folder: [*written(folder, OLD), __file__], "is no data of dtdispatch atlas: line 1: "),
    ],
)
def test_what_is_no_atlas_is_said_in_one_line(
    make: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["atlas-versions", *make(tmp_path), "--output", str(tmp_path / "v.md")]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "v.md").exists()


def test_another_file_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, OLD, NEW)
    (tmp_path / "v.json").write_text("{}")
    assert main(["atlas-versions", *paths, "--output", str(tmp_path / "v.md")]) == 2
    assert "v.json holds something else, not data of several atlases" in capsys.readouterr().err
    assert main(["atlas-versions", *paths, "--output", paths[0]]) == 2
    assert "holds data of an atlas, not data of several atlases" in capsys.readouterr().err
