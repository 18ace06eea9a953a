"""What scripts of ``benchmarks/`` make of real runs, without torch."""

from __future__ import annotations

from benchmarks.versions import Cells, add_verdicts, label_of, table

ROW = "suite/ab_ops.py::test_core[add]::add.Tensor(f32[16,8]S0, f32[16,8]S0)@4"


def verdict(row: str, base_ns: float, head_ns: float, word: str) -> dict[str, object]:
    return {"row": row, "verdict": word, "figures": {"base_ns": base_ns, "head_ns": head_ns}}


def test_version_table_marks_confirmed_changes() -> None:
    cells: Cells = {}
    add_verdicts(cells, "2.9", "2.10", [verdict(f"{ROW}::hit", 19_300, 8_200, "improved")])
    add_verdicts(cells, "2.10", "2.11", [verdict(f"{ROW}::hit", 8_300, 8_800, "passed")])
    add_verdicts(cells, "2.10", "2.11", [{"row": f"{ROW}::miss", "verdict": "missing", "figures": {}}])
    assert list(table(cells, ["2.9", "2.10", "2.11"], "hit")) == [
        "| hit, us | 2.9 | 2.10 | 2.11 |",
        "| --- | --: | --: | --: |",
        "| `add` | 19.3 | 8.2 ↓ | 8.8 |",
    ]
    assert len(list(table(cells, ["2.9"], "miss"))) == 2
    assert label_of("f.py::test_more::add.Tensor(f32[16,8]S0R)@2x2::miss") == ("add @2x2", "miss")
