"""``dtdispatch ab``: processes, output and exit status, with fake interpreters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.report.data import FORMAT
from tests.ab.fakes import (
    ROW,
    calls,
    counted,
    fake_python,
    missing,
    of_instructions,
    proofs,
    wait_for,
    wait_for_end,
    waiting_python,
)

FEW = ("--pairs", "3", "--confirm", "5")
TURNS = {"base": (1, 4, 5), "head": (2, 3, 6)}
STEP = "t.py::test_step::train"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def compare(base: Path, head: Path, *more: str) -> int:
    return main(["ab", "--base", str(base), "--head", str(head), *more])


def row_of(out: str, state: str) -> list[str]:
    """Return the cells of the only row of a table with this state."""
    [line] = [line for line in out.splitlines() if line.startswith("  add.Tensor") and f" {state} " in line]
    return line.split(f" {state} ")[1].split()


def of_step(**per_step: float) -> dict[str, float]:
    return {f"{STEP}::{name}_per_step": n for name, n in {"misses": 0.0, "wraps": 4.0, **per_step}.items()}


def test_equal_sides_pass_and_every_run_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal sides pass after three pairs, and the saved runs are judged equally, each time."""
    folder = tmp_path / "saved"
    assert compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new"), "--keep", str(folder)) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"base: {tmp_path / 'old'}: CPython 3.12.3, torch 2.13.0\nhead: ")
    assert "2 rows: 2 passed" in out
    assert "plain tensors shifted by" in out
    assert row_of(out, "hit")[3:] == ["-", *row_of(out, "hit")[4:]]  # no interval below five pairs
    assert len(row_of(out, "hit")) == 8
    assert calls(tmp_path) == ["old", "new", "new", "old", "old", "new"]
    assert err.count("\n") == 6
    assert [line.partition(",")[0] for line in err.splitlines()][4:] == [
        "process 5 of 6 (base)",
        "process 6 of 6 (head)",
    ]
    assert " s left" in err
    saved = {side: sorted(path.name for path in (folder / side).iterdir()) for side in ("base", "head")}
    assert saved == {side: [f"{n:02}-time.json" for n in turns] for side, turns in TURNS.items()}
    for _ in range(2):
        assert main(["ab", "--judge", str(folder)]) == 0
        assert capsys.readouterr().out == out


def test_only_a_failed_run_leaves_its_folder(tmp_path: Path, temporary_folders: Path) -> None:
    good = fake_python(tmp_path, "good")
    assert compare(good, good) == 0
    assert list(temporary_folders.iterdir()) == []
    assert compare(good, fake_python(tmp_path, "bad", does="sys.exit(3)")) == 5
    assert len(list(temporary_folders.glob("*/head.log"))) == 1


def test_slower_head_takes_five_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs run until the slower head is significant, and its runs are judged equally."""
    path, other = tmp_path / "saved", tmp_path / "other"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", hit=1.5)
    assert compare(base, head, "--keep", str(path)) == 1
    out, _ = capsys.readouterr()
    for output in ("2 rows: 1 passed, 1 regressed", "find what slowed it", "10 processes in "):
        assert output in out
    assert main(["ab", "--judge", str(path)]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--floor", "hit=90%"]) == 0
    assert calls(tmp_path) == ["old", "new", "new", "old"] * 2 + ["old", "new"]
    assert compare(base, head, "--floor", "hit=100%", "--keep", str(other)) == 0  # three pairs
    assert main(["ab", "--judge", str(other), "--floor", "hit=5%"]) == 3
    assert "3 pairs cannot decide it: compare again" in capsys.readouterr().out


def test_undecided_row_takes_all_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that stays undecided is inconclusive after the last pair."""
    path = tmp_path / "saved"
    runs = f"open({str(tmp_path / 'calls')!r}).read().count('new')"
    varies = f"spec['factors'] = {{'hit': 1.5 if {runs} % 2 else 0.98}}"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", does=varies)
    assert compare(base, head, "--keep", str(path)) == 3
    out, err = capsys.readouterr()
    assert len(calls(tmp_path)) == 16
    assert "process 15 of 16 (head), about" in err
    assert "its processes scatter by" in out
    assert "2 rows: 1 passed, 1 inconclusive" in out
    assert main(["ab", "--judge", str(path)]) == 3
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("options", "status", "output"),
    [
        ({"miss": 0.5}, 0, "1 passed, 1 improved"),
        ({"control": 1.2}, 4, "contaminated; run again, or --control off where the builds differ"),
        ({"row": "t.py::test_sum::sum@4"}, 1, "4 rows: 2 missing, 2 new"),
    ],
)
def test_changed_head_has_status_and_summary(
    tmp_path: Path, options: dict[str, Any], status: int, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new", **options), *FEW) == status
    assert output in capsys.readouterr().out


def test_process_gets_arguments_and_a_fixed_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process receives pytest's arguments, a random hash seed and one thread."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tests = ["tests/x.py", "--dtdispatch-rounds=3"]
    checks = (
        f"assert (sys.argv[-2:], os.getcwd()) == ({tests!r}, {str(Path.cwd())!r})\n"
        "assert 'PYTHONHASHSEED' not in os.environ and os.environ['OMP_NUM_THREADS'] == '1', os.environ"
    )
    base = fake_python(tmp_path, "old", does=checks)
    assert compare(base, base, "--", *tests) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_run_keeps_its_runs(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "saved"
    base, (head, pids) = fake_python(tmp_path, "old"), waiting_python(tmp_path, "new")
    sides = ["--base", str(base), "--head", str(head)]
    command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides, "--keep", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(pids.exists)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.endswith("dtdispatch: interrupted\n")
        assert "Traceback" not in err
    assert len([*path.glob("*/*.json")]) == 1
    wait_for_end(pids)


# Counts and instructions


def test_grown_count_lists_its_new_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grown count is annotated in a job, and its runs are judged equally."""
    (tmp_path / "layers.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    base = fake_python(tmp_path, "old", runs=[counted({}, missing(1))])
    head = fake_python(tmp_path, "new", runs=[counted({}, missing(1, 2))])
    path = tmp_path / "saved"
    assert compare(base, head, "--metric", "counts", "--keep", str(path), "--markdown") == 1
    out = capsys.readouterr().out
    assert "13 numbers: 11 passed, 1 regressed, 1 changed" in out
    assert "::error file=layers.py,line=2,title=dtdispatch%3A regressed::" in out
    assert "\n### counts: failed: " in out
    assert len(calls(tmp_path)) == 8
    assert main(["ab", "--judge", str(path), "--markdown"]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--threshold", "5%"]) == 2
    assert "--threshold is for --metric instructions, and this compares counts" in capsys.readouterr().err


def test_tripped_instructions_run_other_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Instructions run one pair, and if it trips, two more with other layouts."""
    notes = "open(spec['calls'] + '.pads', 'a').write(str(len(os.environ['DTDISPATCH_AB_PADDING'])) + ' ')"
    base = fake_python(tmp_path, "old", does=notes, runs=[of_instructions()])
    head = fake_python(tmp_path, "new", does=notes, runs=[of_instructions(miss=7_500_000)])
    assert compare(base, head, "--metric", "instructions") == 1
    out = capsys.readouterr().out
    found = ["5,000,000", "7,500,000", "+50.00", "+50.00", "to", "+50.00", "-", "regressed"]
    assert row_of(out, "miss") == found
    assert "plain tensors shifted by +0.00 %" in out
    assert "2 rows: 1 passed, 1 regressed" in out
    # The last two are profiles.
    assert calls(tmp_path) == ["old", "new", "new", "old", "old", "new", *("old", "new")]
    assert (tmp_path / "calls.pads").read_text().split()[:6] == ["0", "0", "136", "136", "272", "272"]
    assert compare(base, head, "--metric", "instructions", "--threshold", "60%") == 0


# Profiles of instructions


def profiled(name: str, folder: Path, count: int, *functions: str, **options: Any) -> Path:
    """Write an interpreter that lists functions if it must profile the miss."""
    checks = (
        "only = os.environ['DTDISPATCH_AB_ONLY']\n"
        "profiles = only != '[]'\n"
        "assert not profiles or only == '[\"t.py::test_add\"]', only\n"
        "assert ('-odtdispatch_profile=true' in sys.argv) == profiles\n"
        "if not profiles:\n"
        "    spec['runs']['instructions'] = spec['runs']['plain'].replace('plain', 'instructions')\n"
    )
    profile = of_instructions(miss=count, functions=functions)
    plain = {**profile.environment, "metric": "plain"}
    runs = [profile, replace(of_instructions(miss=count), environment=plain)]
    return fake_python(folder, name, does=checks + options.get("does", ""), runs=runs)


def test_changed_row_lists_changed_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Moved lines, moved folders and functions absent from one profile are not listed."""
    same, rule = ("900000 A.same (base/a.py:7)", "500000 A.rule (base/a.py:9)")
    base = profiled("old", tmp_path, 5_000_000, same, rule, "50000 chance (b.py:5)", "40000 least (b.py:1)")
    same, rule = ("1100000 A.same (head/a.py:17)", "2000000 A.rule (head/a.py:19)")
    others = ("900000 A.rule (head/a.py:29)", "50100 chance (b.py:5)", "41000 new (<string>:2)", "7 junk")
    head = profiled("new", tmp_path, 7_500_000, rule, same, *others)
    path = tmp_path / "saved"
    assert compare(base, head, "--metric", "instructions", "--keep", str(path), "--markdown") == 1
    out, err = capsys.readouterr()
    assert "profile: process 8 of 8 (head)" in err
    named = ("A.rule (a.py): +2,400,000 instructions", "A.same (a.py): +200,000 instructions")
    assert "\n    {}\n    {}\n".format(*named) in out
    assert "chance" not in out
    assert "<string>" not in out
    assert "find what grew" not in out
    notes = [note.replace("\\", "") for note in out[out.index("### ") :].splitlines() if note[:2] == "* "]
    assert [note.partition("`: ")[2] for note in notes] == [*named]
    assert main(["ab", "--judge", str(path), "--markdown"]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--threshold", "60%"]) == 0


def test_failed_profile_keeps_the_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = profiled("old", tmp_path, 5_000_000)
    head = profiled("new", tmp_path, 7_500_000, does="\nif profiles: sys.exit(4)\n")
    path = tmp_path / "saved"
    assert compare(base, head, "--metric", "instructions", "--keep", str(path)) == 1
    out, err = capsys.readouterr()
    assert "functions are unknown: head " in err
    assert "find what grew" in out
    assert main(["ab", "--judge", str(path)]) == 1


def test_verdicts_are_exported_as_of_a_gate(tmp_path: Path) -> None:
    path = tmp_path / "ab.json"
    base = fake_python(tmp_path, "old", runs=[counted(of_step())])
    head = fake_python(tmp_path, "new", runs=[counted({f"{STEP}::misses_per_step": 2})])
    assert compare(base, head, "--metric", "counts", "--json", str(path)) == 1
    content = json.loads(path.read_text())
    [gate] = content["gates"]
    assert (content["format"], gate["baseline"], gate["has_failed"]) == (FORMAT, str(base), True)
    found = {one["state"]: (one["verdict"], one["change"]) for one in gate["verdicts"]}
    misses, wraps = found["misses_per_step"], found["wraps_per_step"]
    assert (misses[0], misses[1]["base"], misses[1]["head"], wraps) == ("regressed", 0, 2, ("missing", None))
    assert compare(base, head, "--metric", "counts", "--json", str(path)) == 1  # the same format


NEVER_HITS = f"{ROW}::never_hits"
NAME = "t.py::test_<script>|`[\\x1b[31m]::" + "y" * 10_000 + "::misses_per_step"


@pytest.mark.parametrize(
    ("old", "new", "status", "text"),
    [
        ({**of_step(), NEVER_HITS: 0}, {**of_step(), NEVER_HITS: 0}, 0, "3 numbers: 3 passed"),
        ({NEVER_HITS: 0}, {NEVER_HITS: 1}, 1, "never hits"),
        ({NAME: 0}, {NAME: 1}, 1, "1 regressed"),  # neither breaks the table nor sends escapes
        (of_step(), {"x::y::z": 1}, 1, "missing"),
        (of_step(), {}, 5, "measured nothing"),
    ],
    ids=["equal", "never hits", "any name", "missing", "nothing measured"],
)
def test_clear_or_missing_numbers_run_no_further_pairs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: dict[str, float],
    new: dict[str, float],
    status: int,
    text: str,
) -> None:
    sides = []
    for name, numbers in (("old", old), ("new", new)):
        proved = {row: value for row, value in numbers.items() if row == NEVER_HITS}
        others = {row: value for row, value in numbers.items() if row != NEVER_HITS}
        sides.append(fake_python(tmp_path, name, runs=[counted(others), proofs(proved)]))
    base, head = sides
    assert compare(base, head, "--metric", "counts") == status
    out = "".join(capsys.readouterr())
    assert text in out
    assert "\x1b" not in out
    if not status:
        assert calls(tmp_path) == ["old", "old", "new", "new"]  # counts and proofs of each side
