"""Tests of the scripts in ``benchmarks/``, without torch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.versions import Cells, add_verdicts, op_of, table
from pytest_dtdispatch.core.measurement import Samples, State

LABEL = "add.Tensor(f32[16,8]S0, f32[16,8]S0)@4"


def verdict(base_ns: float, head_ns: float, word: str) -> dict[str, object]:
    change = {"base": base_ns, "head": head_ns}
    return {"label": LABEL, "state": "hit", "verdict": word, "change": change}


def test_version_table_marks_confirmed_changes() -> None:
    cells: Cells = {}
    missing = {"label": LABEL, "state": "miss", "verdict": "missing", "change": None}
    add_verdicts(cells, "2.9", "2.10", [verdict(19_300, 8_200, "improved")])
    add_verdicts(cells, "2.10", "2.11", [verdict(8_300, 8_800, "passed"), missing])
    assert list(table(cells, ["2.9", "2.10", "2.11"], "hit")) == [
        "| hit, us | 2.9 | 2.10 | 2.11 |",
        "| --- | --: | --: | --: |",
        "| `add` | 19.3 | 8.2 ↓ | 8.8 |",
    ]
    assert len(list(table(cells, ["2.9"], "miss"))) == 2


def test_op_names_unusual_meshes() -> None:
    assert op_of("add.Tensor(f32[16,8]S0R)@2x2") == "add @2x2"


def recorded(load: str, ms: float, share: float = 1.0) -> dict[str, Any]:
    """Return a process of a corpus: a miss of this length, and a hit of 8 us that never changes."""
    miss = {"row": "test_program.py::t::add", "state": "miss", "clock": "cpu", "lengths": [2] * 8}
    cpu = [round(ms * 1e6) + step for step in range(16)]
    hit = {**miss, "state": "hit", "clock": "wall", "wall": [8_000] * 16, "cpu": [], "waited": 0.0}
    row = {**miss, "wall": [3 * ns for ns in cpu], "cpu": cpu, "waited": 0.5}
    return {"recording": 1, "load": load, "ranks": 1, "process": {"cpu_share": share}, "rows": [row, hit]}


def write_corpus(path: Path, lines: list[dict[str, Any]]) -> list[str]:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return ["gate_rules.py", str(path)]


def judge_corpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> list[str]:
    gate_rules = pytest.importorskip("benchmarks.gate_rules", exc_type=ImportError)
    monkeypatch.setattr("sys.argv", words)
    gate_rules.main()
    return capsys.readouterr().out.splitlines()


def test_rules_are_judged_on_all_pairs_of_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = [recorded("loops=4", ms) for ms in (2, 2, 3)]
    words = write_corpus(tmp_path / "corpus.jsonl.gz", [recorded("quiet", 2), *loaded])
    lines = judge_corpus(monkeypatch, capsys, words)
    tables = [line for line in lines if "pairs" in line]
    assert [line.partition(";")[0] for line in tables] == [
        "loops=4 against itself: 3 processes, 6 pairs",
        "base quiet, head loops=4: 1 and 3 processes, 3 pairs",
    ]
    [of_class, _] = [line for line in lines if line.startswith("| misses, 1.5 to 6 ms | 1 | 20% |")]
    found = "33.33% (0.0% to 50.0%) | 33.33% (0.0% to 50.0%) | 0.00% (0.0% to 0.0%) | +30%: 66.67%"
    assert found in of_class
    [runs, _] = [line for line in lines if line.startswith("| runs | 2 | 20% |")]
    assert "33.33%" in runs


def test_processes_with_little_of_a_core_have_their_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [recorded("pinned=1", 2, share) for share in (0.5, 0.5, 0.2)]
    lines = judge_corpus(monkeypatch, capsys, write_corpus(tmp_path / "corpus.jsonl.gz", processes))
    assert [line for line in lines if "pairs" in line] == [
        "pinned=1 against itself: 2 processes, 2 pairs; their threads got 50% to 50% of a core",
        "pinned=1 against itself, less than 30% of a core: 3 processes, 4 pairs; "
        "their threads got 20% to 50% of a core",
    ]


def test_constants_name_the_classes_that_change_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [recorded("loops=4", 2) for _ in range(2)]
    processes[1]["rows"][0]["wall"] = [9 * ns for ns in processes[0]["rows"][0]["cpu"]]
    words = [*write_corpus(tmp_path / "corpus.jsonl.gz", processes), "--constants"]
    lines = judge_corpus(monkeypatch, capsys, words)
    changed = "misses, 1.5 to 6 ms: false 0.00% -> 50.00%, +30 % found 100.00% -> 50.00%"
    assert f"  no CPU time: {changed}" in lines
    assert not [line for line in lines if "hits" in line]


def test_rows_that_are_judged_worst_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [recorded("quiet", 2), recorded("quiet", 3)]
    words = [*write_corpus(tmp_path / "corpus.jsonl.gz", processes), "--rows"]
    [*_, row] = judge_corpus(monkeypatch, capsys, words)
    shape = "test_program.py::t::add::miss, 2 ms, at least 8 passes of 2"
    assert row == f"  {shape}: false 50.0%, inconclusive 0.0%, +30 % found 50.0%"


def test_a_rule_reads_the_same_from_reduced_samples() -> None:
    gate_rules = pytest.importorskip("benchmarks.gate_rules", exc_type=ImportError)
    process = gate_rules.process_of(recorded("quiet", 2))
    [key, _] = process.samples
    reduced = process.row(key, 8, 2).samples
    change = gate_rules.times.change_of(process.samples[key], reduced)
    assert (change.change_percent, change.clock) == (0.0, "cpu")
    assert abs(change.median_percent) < 1e-3


def test_a_corpus_has_all_that_a_rule_reads() -> None:
    gate_corpus = pytest.importorskip("benchmarks.gate_corpus", exc_type=ImportError)
    gate_rules = pytest.importorskip("benchmarks.gate_rules", exc_type=ImportError)
    miss = Samples(State.MISS, (7, 9, 8), waited=0.25, lengths=(2, 1), cpu=(5, 6, 7))
    of_ranks = Samples(State.HIT, (7, 9), lengths=(2,), by_rank=((0, (7, 9)), (1, (6, 5))), stat="max")
    for samples in (miss, of_ranks):
        line = json.loads(json.dumps(gate_corpus.plain_samples(samples)))
        assert gate_rules.samples_of(line) == samples
    assert gate_corpus.load_of("pinned") == ("pinned=1", 1, True)
