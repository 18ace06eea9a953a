"""Tests of the scripts in ``benchmarks/``, without torch."""

from __future__ import annotations

from benchmarks.versions import Cells, add_verdicts, op_of, step_ns, table

LABEL = "add.Tensor(f32[16,8]S0, f32[16,8]S0)@4"


def verdict(base_ns: float, head_ns: float, word: str) -> dict[str, object]:
    figures = {"base_ns": base_ns, "head_ns": head_ns}
    return {"label": LABEL, "state": "hit", "verdict": word, "figures": figures}


def test_version_table_marks_confirmed_changes() -> None:
    cells: Cells = {}
    missing = {"label": LABEL, "state": "miss", "verdict": "missing", "figures": {}}
    add_verdicts(cells, "2.9", "2.10", [verdict(19_300, 8_200, "improved")])
    add_verdicts(cells, "2.10", "2.11", [verdict(8_300, 8_800, "passed"), missing])
    assert list(table(cells, ["2.9", "2.10", "2.11"], "hit")) == [
        "| hit, us | 2.9 | 2.10 | 2.11 |",
        "| --- | --: | --: | --: |",
        "| `add` | 19.3 | 8.2 ↓ | 8.8 |",
    ]
    assert len(list(table(cells, ["2.9"], "miss"))) == 2


def test_step_excludes_waiting_for_a_core() -> None:
    waiting = {"measured_ns": 9_000, "parts": {"fsdp python": 6_000, "waiting for a core": 2_000}}
    assert step_ns([waiting, {"measured_ns": 7_000, "parts": {}}]) == [7_000, 7_000]


def test_op_names_unusual_meshes() -> None:
    assert op_of("add.Tensor(f32[16,8]S0R)@2x2") == "add @2x2"
