"""``dtdispatch ab``: processes, output and exit status, with fake interpreters."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from tests.ab.fakes import PLAIN, ROW, calls, fake_python, wait_for
from tests.row_ids import by_text

FEW = ("--pairs", "3", "--confirm", "5")
STEP = "t.py::test_step::train"
Answers = dict[str, Mapping[str, object]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def compare(base: Path, head: Path, *more: str) -> int:
    return main(["ab", "--base", str(base), "--head", str(head), *more])


def several(pythons: list[Path], *more: str) -> int:
    return main(["ab", *(word for python in pythons for word in ("--python", str(python))), *more])


def row_of(out: str, state: str) -> list[str]:
    """Return the cells of the only row of a table with this state."""
    [line] = [line for line in out.splitlines() if line.startswith("  add.Tensor") and f" {state} " in line]
    return line.split(f" {state} ")[1].split()


def counted(**per_step: float) -> dict[str, float]:
    return {f"{STEP}::{name}_per_step": n for name, n in {"misses": 0.0, "wraps": 4.0, **per_step}.items()}


def instructions(hit: float = 60_000, miss: float = 5e6, plain: float = 12_000) -> dict[str, float]:
    return {f"{ROW}::hit": hit, f"{ROW}::miss": miss, PLAIN: plain}


def test_equal_sides_pass_and_every_sample_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal sides pass after three pairs, and the file contains every sample."""
    path = tmp_path / "ab.json"
    status = compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new"), "--json", str(path))
    out, err = capsys.readouterr()
    assert status == 0
    assert out.startswith(f"base: {tmp_path / 'old'}: Python 3.12.3, torch 2.13.0\nhead: ")
    assert "2 rows: 2 passed" in out
    assert "plain tensors shifted by" in out
    assert row_of(out, "hit")[3:] == ["-", *row_of(out, "hit")[4:]]  # no interval below five pairs
    assert len(row_of(out, "hit")) == 8
    assert calls(tmp_path) == ["old", "new", "new", "old", "old", "new"]
    assert err.count("\n") == 6
    assert "process 5 of 6 (base) took" in err
    assert " s left" in err
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("pytest-dtdispatch ab", 5)
    assert content["sides"]["base"]["torch"] == "2.13.0"
    assert len(content["processes"]) == 6
    assert {verdict["figures"]["low_percent"] for verdict in content["verdicts"]} == {None}
    assert by_text(content["processes"][0]["values"]).keys() == instructions().keys()
    assert {verdict["verdict"] for verdict in content["verdicts"]} == {"passed"}


def test_only_a_failed_run_leaves_its_folder(tmp_path: Path, temporary_folders: Path) -> None:
    good = fake_python(tmp_path, "good")
    assert compare(good, good) == 0
    assert list(temporary_folders.iterdir()) == []
    assert compare(good, fake_python(tmp_path, "bad", does="sys.exit(3)")) == 5
    assert len(list(temporary_folders.glob("*/head.log"))) == 1


def test_slower_head_takes_five_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs run until the slower head is significant, and its file is judged equally."""
    path = tmp_path / "ab.json"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", hit=1.5)
    assert compare(base, head, "--json", str(path)) == 1
    out, _ = capsys.readouterr()
    for output in ("2 rows: 1 passed, 1 regressed", "find what slowed it", "10 processes in "):
        assert output in out
    assert main(["ab", "--judge", str(path)]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--floor", "hit=90%"]) == 0
    assert calls(tmp_path) == ["old", "new", "new", "old"] * 2 + ["old", "new"]
    assert compare(base, head, "--floor", "hit=100%", "--json", str(path)) == 0  # three pairs
    assert main(["ab", "--judge", str(path), "--floor", "hit=5%"]) == 3
    assert "3 pairs cannot decide it: compare again" in capsys.readouterr().out


def test_undecided_row_takes_all_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that stays undecided is inconclusive after the last pair."""
    path = tmp_path / "ab.json"
    runs = f"open({str(tmp_path / 'calls')!r}).read().count('new')"
    varies = f"spec['factors'] = {{'hit': 1.5 if {runs} % 2 else 0.98}}"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", does=varies)
    assert compare(base, head, "--json", str(path)) == 3
    out, err = capsys.readouterr()
    assert len(calls(tmp_path)) == 16
    assert "process 15 of 16 (head) took" in err
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


def test_interrupted_run_saves_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "ab.json"
    marker = tmp_path / "grandchild"
    waits = (
        "if spec['name'] == 'new':\n"
        "    import subprocess\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({str(marker)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"    os.replace({str(marker)!r} + '.part', {str(marker)!r})\n"
        "    time.sleep(600)\n"
    )
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", does=waits)
    sides = ["--base", str(base), "--head", str(head)]
    command = [sys.executable, "-m", "pytest_dtdispatch", "ab", *sides, "--json", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(marker.exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("dtdispatch: interrupted\n")
    assert "Traceback" not in err
    assert len(json.loads(path.read_text())["processes"]) == 1
    for pid in map(int, marker.read_text().split()):
        wait_for(partial(is_gone, pid))


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; zombies count as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# Counts and instructions


def test_grown_count_lists_its_new_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A grown count lists its new items, and its file is judged equally."""
    name, before, after = f"{STEP}::misses_per_step", "mm at a.py:1", "add at a.py:2"
    one: Answers = {"counts": counted(misses=1.0), "proofs": {}, "details": {name: [before]}}
    two: Answers = {"counts": counted(misses=2.0), "proofs": {}, "details": {name: [before, after]}}
    base, head = fake_python(tmp_path, "old", numbers=one), fake_python(tmp_path, "new", numbers=two)
    path = tmp_path / "ab.json"
    assert compare(base, head, "--metric", "counts", "--json", str(path)) == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("  train")]
    assert line.split() == ["train", "misses", "per", "step", "1", "2", "+1", "regressed"]
    assert f"\n    {after}\n" in out
    assert before not in out
    assert "wraps" not in out
    assert "2 numbers: 1 passed, 1 regressed" in out
    assert len(calls(tmp_path)) == 8
    assert main(["ab", "--judge", str(path)]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--threshold", "5%"]) == 2
    assert "--threshold is for --metric instructions, and this compares counts" in capsys.readouterr().err


def test_new_call_is_named_without_failing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that moved to another line is not new; a second call of the same signature is."""
    name = f"{STEP}::calls_per_step"
    lines = {
        "old": ["add@4, at a.py:1", "mm@4, at a.py:2", "neg@4, at a.py:3"],
        "new": ["add@4, at a.py:4", "relu@4, at a.py:5", "mm@4 (2x), at a.py:6, a.py:7", "neg@4, at a.py:8"],
    }
    old, new = (
        fake_python(tmp_path, side, numbers={"counts": of_side, "proofs": {}, "details": {name: lines[side]}})
        for side, of_side in (("old", counted(calls=3.0)), ("new", counted(calls=5.0)))
    )
    path = tmp_path / "ab.json"
    assert compare(old, new, "--metric", "counts", "--json", str(path)) == 0
    out = capsys.readouterr().out
    named = [line.strip() for line in out.splitlines() if line.startswith("    ")]
    assert named == ["relu@4, at a.py:5", "mm@4 (2x), at a.py:6, a.py:7"]
    verdicts = {one["row"]: one["verdict"] for one in json.loads(path.read_text())["verdicts"]}
    assert [verdicts.pop(name), *{*verdicts.values()}] == ["changed", "passed"]
    assert compare(new, old, "--metric", "counts") == 0
    assert main(["ab", "--judge", str(path)]) == 0


def test_tripped_instructions_run_other_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Instructions run one pair, and if it trips, two more with other layouts."""
    notes = "open(spec['calls'] + '.pads', 'a').write(str(len(os.environ['DTDISPATCH_AB_PADDING'])) + ' ')"
    base = fake_python(tmp_path, "old", does=notes, numbers={"instructions": instructions()})
    head = fake_python(tmp_path, "new", does=notes, numbers={"instructions": instructions(miss=7.5e6)})
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
        "spec['numbers']['details'] = spec['numbers']['details'] if profiles else {}\n"
    )
    numbers: Answers = {"instructions": instructions(miss=count), "details": {f"{ROW}::miss": [*functions]}}
    return fake_python(folder, name, does=checks + options.get("does", ""), numbers=numbers)


def test_changed_row_lists_changed_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Moved lines, moved folders and functions absent from one profile are not listed."""
    same, rule = ("900000 A.same (base/a.py:7)", "500000 A.rule (base/a.py:9)")
    base = profiled("old", tmp_path, 5_000_000, same, rule, "50000 chance (b.py:5)", "40000 least (b.py:1)")
    same, rule = ("1100000 A.same (head/a.py:17)", "2000000 A.rule (head/a.py:19)")
    others = ("900000 A.rule (head/a.py:29)", "50100 chance (b.py:5)", "41000 new (<string>:2)", "junk")
    head = profiled("new", tmp_path, 7_500_000, rule, same, *others)
    path = tmp_path / "ab.json"
    assert compare(base, head, "--metric", "instructions", "--json", str(path), "--markdown") == 1
    out, err = capsys.readouterr()
    assert "profile: process 8 of 8 (head)" in err
    named = ("A.rule (a.py): +2,400,000 instructions", "A.same (a.py): +200,000 instructions")
    assert "\n    {}\n    {}\n".format(*named) in out
    assert "chance" not in out
    assert "<string>" not in out
    assert "find what grew" not in out
    [_, miss, _] = pasted(out)
    assert "".join(miss[7].split("\\")) == f"regressed: {'; '.join(named)}"
    assert main(["ab", "--judge", str(path), "--markdown"]) == 1
    assert capsys.readouterr().out == out
    assert main(["ab", "--judge", str(path), "--threshold", "60%"]) == 0


def test_failed_profile_keeps_the_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = profiled("old", tmp_path, 5_000_000)
    head = profiled("new", tmp_path, 7_500_000, does="\nif profiles: sys.exit(4)\n")
    path = tmp_path / "ab.json"
    assert compare(base, head, "--metric", "instructions", "--json", str(path)) == 1
    out, err = capsys.readouterr()
    assert "functions are unknown: head " in err
    assert "find what grew" in out
    assert main(["ab", "--judge", str(path)]) == 1


def test_row_changed_on_two_sides_is_profiled_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [profiled(f"side-{n}", tmp_path, 5_000_000 + 2_500_000 * n) for n in range(3)]
    assert several(sides, "--metric", "instructions") == 1
    assert "functions are unknown" not in capsys.readouterr().err


# The Markdown table


def pasted(out: str) -> list[list[str]]:
    """Return the titles and rows of the Markdown tables, split as GitHub does."""
    lines = out[out.index("\n### ") :].splitlines()
    titles, _, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert len({len(row) for row in (titles, *rows)}) == 1
    rows = [row for row in rows if row != titles and not set(row[0]) <= set(" -:")]
    return [[cell.strip() for cell in row] for row in (titles, *rows)]


def test_pasted_table_has_numbers_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ab.json"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", miss=1.5)
    assert compare(base, head, *FEW, "--json", str(path), "--markdown") == 1
    out = capsys.readouterr().out
    titles, *rows = pasted(out)
    assert titles[2:7] == ["base us", "head us", "change %", "interval %", "plain %"]
    verdicts = {one["state"]: one for one in json.loads(path.read_text())["verdicts"]}
    assert [row[1] for row in rows] == ["miss", "hit"]  # the worst first
    for row in rows:
        figures = verdicts[row[1]]["figures"]
        assert row[0] == f"`{ROW.rpartition('::')[2]}`"
        assert row[2:4] == [f"{figures[f'{side}_ns'] / 1000:,.2f}" for side in ("base", "head")]
        assert row[4] == f"{figures['shift_percent']:+.1f}"
        ends = [figures[f"{end}_percent"] for end in ("low", "high")]
        assert row[5] == ("-" if row[1] == "hit" else "{:+.1f} to {:+.1f}".format(*ends))
        assert row[9].startswith(verdicts[row[1]]["verdict"])
        assert row[10:] == ["-", "`t.py::test_add`"]
    assert "find what slowed it" in rows[0][9]
    assert "\n### time: failed: 1 passed, 1 regressed\n" in out
    assert out.index("| miss |") < out.index("1 row passed</summary>") < out.index("| hit |")
    assert f"{tmp_path / 'old'}: Python 3.12.3" in out.replace("\\", "")
    assert main(["ab", "--judge", str(path), "--markdown"]) == 1
    assert capsys.readouterr().out == out


def test_table_of_counts_starts_with_regressed_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "t.py::test_a[<b>|`x`]::a|`b`<script>@c&d\\|e::misses_per_step"
    one: Answers = {"counts": {**counted(), hostile: 0.0}, "proofs": {}}
    two: Answers = {"counts": {**counted(), hostile: 2.0}, "proofs": {}, "details": {hostile: ["mm | <x>"]}}
    base, head = fake_python(tmp_path, "old", numbers=one), fake_python(tmp_path, "new", numbers=two)
    assert compare(base, head, "--metric", "counts", "--markdown") == 1
    titles, *rows = pasted(capsys.readouterr().out)
    assert titles == ["op", "path", "base", "head", "change", "verdict", "line", "test"]
    [first] = rows  # unchanged counts are not listed
    assert first[1:6] == ["misses per step", "0", "2", "+2", r"regressed: mm \| \<x\>"]
    assert not {"<", "`"} & set(re.sub(r"\\.|`[^`]*`", "", "".join(first)))


def test_table_of_several_names_the_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"counts": counted(), "proofs": {}}
    pythons = [fake_torch(tmp_path, torch, numbers=numbers) for torch in ("2.10.0", "2.11.0")]
    more = {"counts": {name: value + 1 for name, value in counted().items()}, "proofs": {}}
    pythons.append(fake_torch(tmp_path, "2.13.0", numbers=more))
    assert several(pythons, "--metric", "counts", "--markdown") == 1
    titles, *rows = pasted(capsys.readouterr().out)
    assert titles[-1] == "side"
    assert {row[-1] for row in rows} == {"python-3"}


def test_pasted_rows_have_lines_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    grown, new = "t.py::test_a::a::misses_per_step", "t.py::test_b::b::misses_per_step"
    one: Answers = {"counts": {grown: 1.0}, "proofs": {}, "lines": {grown: ["layers.py:7"]}}
    lines = {grown: ["layers.py:7", "layers.py:31"]}
    two: Answers = {"counts": {grown: 2.0, new: 3.0}, "proofs": {}, "lines": lines}
    base, head = fake_python(tmp_path, "old", numbers=one), fake_python(tmp_path, "new", numbers=two)
    assert compare(base, head, "--metric", "counts", "--markdown") == 1
    out = capsys.readouterr().out
    _, changed, added = pasted(out)
    assert (changed[2:5], changed[6]) == (["1", "2", "+1"], "layers.py:31")
    assert added[2:5] == ["-", "3", "-"]
    assert "::error file=layers.py,line=31,title=dtdispatch%3A regressed::" in out


def test_sides_are_named_by_their_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one: Answers = {"counts": counted(), "proofs": {}}
    two: Answers = {"counts": {name: value + 1 for name, value in counted().items()}, "proofs": {}}
    base, head = fake_python(tmp_path, "old", numbers=one), fake_python(tmp_path, "new", numbers=two)
    labels = ("--label", "base=main", "--label", "head=#123")
    assert compare(base, head, "--metric", "counts", "--markdown", *labels) == 1
    out = capsys.readouterr().out
    titles, *_ = pasted(out)
    assert [title.replace("\\", "") for title in titles[2:4]] == ["main", "#123"]
    assert f"head #123: {head}" in out
    for label, message in (("top=x", "no side of this run; sides: base, head"), ("head", "SIDE=NAME")):
        assert compare(base, head, "--metric", "counts", "--label", label) == 2
        assert message in capsys.readouterr().err


NEVER_HITS = f"{ROW}::never_hits"
NAME = "t.py::test_<script>|`[\\x1b[31m]::" + "y" * 10_000 + "::misses_per_step"


@pytest.mark.parametrize(
    ("metric", "old", "new", "status", "text"),
    [
        ("counts", {**counted(), NEVER_HITS: 0.0}, {**counted(), NEVER_HITS: 0.0}, 0, "3 numbers: 3 passed"),
        ("counts", {NEVER_HITS: 0.0}, {NEVER_HITS: 1.0}, 1, "never hits"),
        ("counts", {NAME: 0.0}, {NAME: 1.0}, 1, "1 regressed"),  # neither breaks the table nor sends escapes
        ("counts", counted(), {"x::y::z": 1.0}, 1, "missing"),
        ("counts", counted(), {}, 5, "measured nothing"),
    ],
    ids=["equal", "never hits", "any name", "missing", "nothing measured"],
)
def test_clear_or_missing_numbers_run_no_further_pairs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    metric: str,
    old: dict[str, float],
    new: dict[str, float],
    status: int,
    text: str,
) -> None:
    base = fake_python(tmp_path, "old", numbers={metric: old, "proofs": {}})
    head = fake_python(tmp_path, "new", numbers={metric: new, "proofs": {}})
    assert compare(base, head, "--metric", metric) == status
    assert text in (out := "".join(capsys.readouterr()))
    assert "\x1b" not in out
    if not status:
        assert calls(tmp_path) == ["old", "old", "new", "new"]  # counts and proofs of each side


# Several interpreters


def fake_torch(folder: Path, torch: str, **options: Any) -> Path:
    return fake_python(folder, f"v{torch}", probe={"torch": f"{torch}+cpu"}, **options)


def test_first_regressed_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each interpreter is compared with the first, and the first that regressed is named."""
    path = tmp_path / "ab.json"
    versions = ("2.10.0", "2.11.0", "2.13.0", "2.14.0")
    pythons = [fake_torch(tmp_path, torch, hit=1.5 if torch > "2.12" else 1.0) for torch in versions]
    assert several(pythons, *FEW, "--json", str(path)) == 1
    names = [f"v{torch}" for torch in versions]
    assert calls(tmp_path)[:12] == [*names, *names[::-1], *names]
    assert Counter(calls(tmp_path)) == {"v2.10.0": 5, "v2.11.0": 3, "v2.13.0": 5, "v2.14.0": 5}
    out = capsys.readouterr().out
    assert "python-2 against python-1:" in out
    assert out.count("2 rows: 1 passed, 1 regressed") == 2
    assert f"first regressed: python-3: {pythons[2]}, torch 2.13.0+cpu: 1 row\n" in out
    content = json.loads(path.read_text())
    assert content["request"]["pythons"] == list(map(str, pythons))
    regressed = [v for v in content["verdicts"] if v["verdict"] == "regressed"]
    assert [(v["base"], v["head"]) for v in regressed] == [("python-1", f"python-{n}") for n in (3, 4)]
    assert main(["ab", "--judge", str(path)]) == 1
    assert capsys.readouterr().out == out
    assert len(calls(tmp_path)) == 18


def test_rows_missing_from_one_version_do_not_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows missing from one of several interpreters are listed with the reason, and do not fail the run."""
    only = {"absent": [[["t.py::test_add"], "failed: no such op"]]}
    incomplete = fake_torch(tmp_path, "2.9.1", only=only)
    assert several([incomplete, incomplete]) == 5
    # Two interpreters are a base and a head.
    assert f"base {incomplete}: measured nothing" in capsys.readouterr().err
    other = fake_torch(tmp_path, "2.10.0", row="t.py::test_sum::sum@4")
    assert several([other, incomplete, other]) == 5
    assert "measured nothing: t.py::test_add: failed: no such op" in capsys.readouterr().err
    numbers = {"counts": counted(), "proofs": {}}
    old = fake_torch(tmp_path, "2.5.1", numbers=numbers)
    numbers = {"counts": {"t.py::test_other::x::misses_per_step": 0.0}, "proofs": {}}
    only = {"absent": [[["t.py::test_step"], "skipped: gone"]]}
    new = fake_torch(tmp_path, "2.15.0", numbers=numbers, only=only)
    assert several([old, old, new], "--metric", "counts") == 0
    out = capsys.readouterr().out
    assert "in python-3: t.py::test_step: skipped: gone" in out
    assert out.count("2 samples in ") == 2
    assert "3 numbers: 2 missing, 1 new" in out
    assert out.endswith("first regressed: none\n")
    assert several([old, new, new], "--metric", "counts") == 3  # no pair has common rows
