"""Reading saved runs: the original run, or a one-line error."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import pytest_dtdispatch.plugin.kinds  # noqa: F401 (registers the kinds of results)
from pytest_dtdispatch.comparing.model import CallCounts, ComparedVariant
from pytest_dtdispatch.comparing.scaling import Fit, Scaling
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core import files
from pytest_dtdispatch.core.measurement import Refused, Samples, State, Unit
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Threshold, TimeChange, Verdict
from pytest_dtdispatch.report.document import Document, one_line
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import KEY, NOTHING, VERSION, ReportedRun, decode_run, encode_run, read_run
from tests.fuzz.inputs import assert_one_line, changed, fuzzed
from tests.reported_runs import BUDGET, COUNTED, HITS, hostile_run, measured, results_of, row, run_of
from tests.row_ids import number, row_id

FITS = Fit(State.MISS, 1.5, 1.0, 2.0, (2.0,), 5), Fit(State.HIT, why_not="few passes")
OTHERS = (
    Scaling("scaled", (8, 16), *FITS),
    CompiledFunction("f", "inductor", CompileCounts(1, ("a",)), row("f", Samples(State.COMPILE_COLD, (9,)))),
    ComparedVariant("c[x]", "x", "c", row("c[x]", Samples(State.CALL, HITS)), CallCounts(1, 2, 3, 4)),
)
INFINITE = RowVerdict(
    row_id("t.py::test_a"), Verdict.PASSED, TimeChange(1.0, 2.0, 100.0, math.inf, 8), "", "10%"
)
UNMEASURED = measured("mul.Tensor(f32[8]R)@4", calls=3, rounds=0, notes=("why not",))
UNPROPAGATED = Samples(State.MISS, (), (Refused("nothing propagated (twice)", 4),))
PROPAGATED = Samples(State.HIT, HITS, (Refused("it propagated", 1),))
REFUSED = row("mm.default(f32[8,8]R)@4", UNPROPAGATED, PROPAGATED, Samples(State.LOCAL, HITS))
OWN_UNIT = Unit(hit="thread_cpu_hit_ns")
SLOWEST = Samples(State.HIT, (9,), by_rank=((0, (7, 7)), (1, (9, 9))), stat="max")
RANKS = row("mul.Tensor(f32[4]R)@4", SLOWEST, Samples(State.COLD, HITS, unit=OWN_UNIT))
LIVE = ReportedRun(
    started="2026-11-22T20:00:00+00:00",
    environment={"CPU": "a CPU", "threads": "1"},
    measured={"t.py::test_a": (UNMEASURED, row(), REFUSED, RANKS), "t.py::test_b": (row(calls=7),)},
    thresholds={"t.py::test_a": (Threshold("hit", "median", 0.3, is_strict=True),)},
    results=results_of(BUDGET, COUNTED, *OTHERS),
    earlier=results_of(BUDGET),
    about_earlier="before: a.json",
    unknown={"note": {"t.py::test_a": [{"type": "Note", "name": "model"}]}},
    numbers=(number("t.py::test_a::step", "collectives", 3),),
    gates=(Judgement((INFINITE,), "base.json"),),
    notices=Document((one_line("one thing"),)),
)


def saved(run: ReportedRun) -> dict[str, Any]:
    """Return the members of a saved run after a JSON round trip."""
    text = json.dumps({"machine_info": {}, "benchmarks": [], KEY: encode_run(run)})
    members: dict[str, Any] = json.loads(text)
    return members


@pytest.mark.parametrize("run", [LIVE, hostile_run()], ids=["all kinds", "hostile"])
def test_saved_run_is_read_back_unchanged(run: ReportedRun, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(saved(run)))
    # As text: since Python 3.13 dataclasses with the same NaN are not equal.
    assert repr(read_run(path)) == repr(replace(run, where=str(path)))


def block(of_samples: dict[str, Any] | None = None, calls: object = 1, **changes: Any) -> str:
    """Return a file with changed members of the first samples, of their row or of the run."""
    members = saved(run_of(row()))
    [of_row] = members[KEY]["run"]["measured"]["t.py::test_a"]
    of_row["figures"]["samples"][0] |= of_samples or {}
    of_row["calls"] = calls
    members[KEY]["run"] |= changes
    return json.dumps(members)


WRONG = {
    "a list": ("[]", NOTHING),
    "null": ("null", NOTHING),
    "others alone": (json.dumps({"benchmarks": [{"fullname": "t.py::test_theirs"}]}), NOTHING),
    "no run": (json.dumps({"benchmarks": [], KEY: {"version": VERSION}}), "has no dict: None"),
    "no version": (json.dumps({"benchmarks": [], KEY: [{"name": "a"}]}), f"its {KEY} has no version"),
    "nothing": (block(measured={}), NOTHING),
    "gates": (block(gates=3), f"its {KEY} has no list: 3"),
    "a block": (block(notices={"blocks": [{"type": "Evil"}]}), f"its {KEY} has a Evil of an invalid type"),
    "no state": (block({"state": "warm"}), "'warm' is not a valid State"),
    "no times": (block({"values": ["<b>"]}), "has no int: '<b>'"),
    "below zero": (block({"values": [-1]}), "a latency of -1 ns"),
    "no number": (block({"values": [float("nan")]}), "has no int: nan"),
    "too great": (block({"values": [10**400]}), "in place of a number up to 2**63 (values of a Samples)"),
    "too many calls": (block(calls=10**400), "in place of a number up to 2**63 (calls of a Measurement)"),
    "calls below zero": (block(calls=-5), "-5 in place of 0 to 9223372036854775808"),
    "an indent": (block(notices={"blocks": [{"type": "Verbatim", "lines": [], "indent": 10**9}]}), "to 99"),
    "a key twice": (block()[:-1] + f', "{KEY}": 1}}', f"is not JSON: '{KEY}' occurs twice in one object"),
    "a long name": (block({"state": "x" * 10_000}), "is not a valid State"),
}


THRESHOLD = {"type": "Threshold", "state": "", "field": "median", "fraction": 0.2}
SPOILED: list[dict[str, Any]] = [
    {"fraction": math.nan}, {"fraction": -5}, {"fraction": 0}, {"fraction": 101}, {"fraction": 10**400},
    {"fraction": "inf"}, {"fraction": "0.2"}, {"field": "nosuch"}, {"state": "nosuch"}, {"state": "local"},
    {"is_strict": 1}, {"field": "median:20%,q1"},
]  # fmt: skip


@pytest.mark.parametrize("spoiled", SPOILED, ids=str)
def test_invalid_threshold_is_refused(spoiled: dict[str, Any]) -> None:
    for thresholds in ([THRESHOLD | spoiled], [THRESHOLD, THRESHOLD | spoiled]):
        with pytest.raises(ValueError, match=r"of a Threshold|list of thresholds"):
            decode_run(json.loads(block(thresholds={"t.py::test_a": thresholds})))


def test_duplicate_or_empty_thresholds_are_refused() -> None:
    decode_run(json.loads(block(thresholds={"t.py::test_a": [THRESHOLD]})))
    for thresholds in ([], [THRESHOLD, THRESHOLD]):
        with pytest.raises(ValueError, match="not a list of thresholds"):
            decode_run(json.loads(block(thresholds={"t.py::test_a": thresholds})))


@pytest.mark.parametrize("case", WRONG)
def test_invalid_run_error_is_one_line_with_file(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    path = tmp_path / "0001_base.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".") as error:
        read_run(path)
    line = str(error.value)
    assert line.startswith(f"{path} is not ")
    assert message in line
    assert "\n" not in line
    assert len(line) < len(str(path)) + 450


def test_members_of_later_versions_are_ignored() -> None:
    later = decode_run(json.loads(block({"volume": 1}, weather={"type": "Weather"})))
    assert repr(later) == repr(decode_run(json.loads(block())))


@pytest.mark.parametrize("version", [VERSION - 1, 99])
def test_other_format_is_refused_in_one_line(version: int, tmp_path: Path) -> None:
    path = tmp_path / "0001_base.json"
    path.write_text(json.dumps({"benchmarks": [], KEY: {"version": version, "run": 3}}))
    with pytest.raises(ValueError, match=r".") as error:
        read_run(path)
    assert str(error.value) == (
        f"{path}: saved in format {version}; this version reads {VERSION}: save it again, or compare with "
        "the version that wrote it"
    )


@pytest.mark.parametrize("text", ["", "{", block()[:-20]])
def test_invalid_json_error_is_one_line_with_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "0001_base.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^/\S+/0001_base\.json is not JSON: [^\n]* line 1 [^\n]*$"):
        read_run(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"0001_base\.json is nested too deeply$"):
        read_run(path)


def test_oversized_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0001_base.json"
    path.write_text(block())
    monkeypatch.setattr(files, "MAX_BYTES", len(block()) - 1)
    with pytest.raises(ValueError, match=r"\.json has more than 0 MiB$"):
        read_run(path)
    monkeypatch.setattr(files, "MAX_BYTES", len(block()))
    assert read_run(path)


@pytest.mark.parametrize("padding", ["[],", "{},", "1,"])
def test_values_that_exceed_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padding: str
) -> None:
    """A file whose values would exhaust the memory is not read."""
    path = tmp_path / "0001_base.json"
    monkeypatch.setattr(files, "MAX_PARSED_BYTES", 2**20)
    path.write_text(f'{{"pad": [{padding * 20_000}0], {block()[1:]}')
    with pytest.raises(ValueError, match="would take more than 1 MiB of memory"):
        read_run(path)
    path.write_text(f'{{"pad": [{padding * 20}0], {block()[1:]}')
    assert read_run(path)


def test_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"bytes\.json:2: this is not UTF-8 text$"):
        read_run(tmp_path / "bytes.json")
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ValueError, match=r"cannot be read: (Is a directory|No such file)"):
            read_run(path)


@fuzzed
@given(some.data())
def test_any_content_renders_or_is_one_line_error(data: some.DataObject) -> None:
    for run in (LIVE, hostile_run()):
        spoiled, _ = data.draw(changed(saved(run)))
        try:
            again = decode_run(spoiled)
        except ValueError as error:
            assert_one_line(error)
            continue
        assert html_page(again).endswith("</html>\n")
