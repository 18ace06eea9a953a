"""``dtdispatch ab``: what runs, in which order, what is said, with which status; with fake interpreters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from tests.ab.fakes import ROW, calls, fake_python, processes_in

PAIRS = 5
FEW = ("--pairs", "4", "--confirm", "6")


def compare(base: Path, head: Path, *more: str) -> int:
    return main(["ab", "--base", str(base), "--head", str(head), *more])


def test_equal_sides_pass_after_the_screen_and_the_file_has_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ab.json"
    status = compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new"), "--json", str(path))
    out, err = capsys.readouterr()
    assert status == 0
    assert "2 rows: 2 passed" in out
    assert "plain tensors shifted by" in out
    assert calls(tmp_path) == ["old", "new", "new", "old", "old", "new", "new", "old", "old", "new"]
    assert err.count("\n") == 2 * PAIRS
    assert "screen: process 9 of 10 (base) took" in err
    assert " s left" in err
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("pytest-dtdispatch ab", 1)
    assert content["sides"]["base"]["torch"] == "2.13.0"
    assert len(content["processes"]) == 10
    assert len(content["processes"][0]["rows"][f"{ROW}::hit"]["medians_ns"]) == 5
    assert {verdict["verdict"] for verdict in content["verdicts"]} == {"passed"}


def test_a_run_that_ended_leaves_no_folder_and_one_that_failed_leaves_its_log(
    tmp_path: Path, temporary_folders: Path
) -> None:
    good = fake_python(tmp_path, "good")
    assert compare(good, good, "--pairs", "4") == 0
    assert len(calls(tmp_path)) == 8
    assert list(temporary_folders.iterdir()) == []
    assert compare(good, fake_python(tmp_path, "bad", does="sys.exit(3)")) == 5
    assert len(list(temporary_folders.glob("*/head.log"))) == 1


def test_a_slower_head_is_confirmed_on_fresh_processes_and_judged_again_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ab.json"
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", hit=1.5)
    assert compare(base, head, "--json", str(path)) == 1
    out, _ = capsys.readouterr()
    assert "2 rows: 1 passed, 1 regressed" in out
    assert "find what slowed it" in out
    assert "confirmation: 20 processes" in out
    assert len(calls(tmp_path)) == 30
    assert compare(base, head, "--resume", str(path)) == 1
    assert capsys.readouterr().out == out
    assert len(calls(tmp_path)) == 30


def test_a_faster_head_is_improved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new", miss=0.5), *FEW) == 0
    assert "1 passed, 1 improved" in capsys.readouterr().out


def test_other_plain_tensors_contaminate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", local=1.2)
    assert compare(base, head, *FEW) == 4
    assert "--control off" in capsys.readouterr().out
    assert compare(base, head, "--control", "off", *FEW) == 0


def test_a_noisy_head_is_inconclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = (
        "count = open(told['calls']).read().count('new'); told['factors'] = {'hit': (0.8, 1.3)[count % 2]}"
    )
    assert compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new", does=noise), *FEW) == 3
    assert "1 inconclusive" in capsys.readouterr().out


def test_a_renamed_row_is_missing_and_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = compare(fake_python(tmp_path, "old"), fake_python(tmp_path, "new", row="t.py::test_sum::sum@4"))
    assert status == 1
    assert "4 rows: 2 new, 2 missing" in capsys.readouterr().out


def test_floors_can_be_asked_for(tmp_path: Path) -> None:
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", hit=1.5)
    assert compare(base, head, "--floor", "hit=100%") == 0
    assert len(calls(tmp_path)) == 10


def test_a_process_has_the_arguments_of_pytest_a_random_hash_seed_and_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tests = ["tests/x.py", "--dtdispatch-rounds=3"]
    checks = (
        f"assert sys.argv[-2:] == {tests!r}, sys.argv\n"
        f"assert os.getcwd() == {str(Path.cwd())!r}\n"
        "assert 'PYTHONHASHSEED' not in os.environ and os.environ['OMP_NUM_THREADS'] == '1', os.environ"
    )
    base = fake_python(tmp_path, "old", does=checks)
    assert compare(base, base, "--pairs", "4", "--", *tests) == 0


def test_a_run_goes_on_where_it_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ab.json"
    base = fake_python(tmp_path, "old")
    fails = "if open(told['calls']).read().count('new') == 3: sys.exit(3)"
    head = fake_python(tmp_path, "new", does=fails)
    assert compare(base, head, "--json", str(path)) == 5
    assert f"go on with --resume {path}" in capsys.readouterr().err
    assert processes_in(path) == 5
    assert len(calls(tmp_path)) == 6
    assert main(["ab", "--resume", str(path)]) == 0
    # Two pairs were whole. The half of the third is run again, beside its other half.
    assert len(calls(tmp_path)) == 6 + 6
    assert processes_in(path) == 10


def test_an_interrupt_leaves_no_process_and_a_file_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "ab.json"
    marker = tmp_path / "grandchild"
    waits = (
        "if told['name'] == 'new':\n"
        "    import subprocess\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({str(marker)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"    os.replace({str(marker)!r} + '.part', {str(marker)!r})\n"
        "    time.sleep(600)\n"
    )
    base, head = fake_python(tmp_path, "old"), fake_python(tmp_path, "new", does=waits)
    command = ["ab", "--base", str(base), "--head", str(head), "--json", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_dtdispatch", *command], stderr=subprocess.PIPE, text=True
    )
    wait_for(marker.exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"interrupted; go on with --resume {path}" in err
    assert "Traceback" not in err
    assert processes_in(path) == 1
    for pid in map(int, marker.read_text().split()):
        wait_for(partial(is_gone, pid))


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Say whether a process is over; one that nobody has waited for yet is."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
