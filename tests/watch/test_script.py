"""``dtdispatch watch`` runs a script like Python, and reports its steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.watch.script import watch_module, watch_script
from tests.rank_runs import finish
from tests.watched_scripts import MESH, Watch

pytestmark = pytest.mark.torch

TRAINING = f"""
import sys
assert "pytest" not in sys.modules
{MESH}
make = lambda *shape: torch.nn.Parameter(distribute_tensor(torch.ones(*shape), mesh, [Replicate()]))
up, down = make(8, 8), make(8, 8)
optimizers = [torch.optim.SGD([each], lr=0.1) for each in (up, down)]
for i in range(8):
    x = distribute_tensor(torch.ones(4 if i != 5 else 8, 8), mesh, [Shard(0)])
    (x @ up @ down).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
print(sys.argv, sys.path[0])
def fail():
    raise KeyError('mine')
fail()
"""
LINE = 1 + TRAINING.splitlines().index("    (x @ up @ down).sum().backward()")
NOTHING = "dtdispatch: train.py called no op on DTensors; processes that it starts are not watched\n"


@pytest.mark.slow
def test_optimizer_ends_steps_and_traceback_is_unchanged(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "pytest_dtdispatch", "watch", "train.py", "--lr", "--", "3"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == f"['{tmp_path / 'train.py'}', '--lr', '--', '3'] {tmp_path}\n"
    before, traceback = process.stderr.split("Traceback")
    lines = [line for line in before.splitlines() if line.startswith("dtdispatch: ")]
    assert lines[0].startswith("dtdispatch: step 1: warm-up: ")
    [missed] = [line for line in lines if " misses: " in line]
    assert missed.startswith("dtdispatch: step 6: ")
    assert f"train.py:{LINE} (forward)" in missed
    own, _, summary = traceback.partition("KeyError: 'mine'")
    assert own.count('File "') == 2
    assert "pytest_dtdispatch" not in own
    assert "StepWatch: 8 steps, 1 disturbed" in summary


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 +", 1, "SyntaxError: invalid syntax\n"),
    ],
)
def test_failing_script_fails_as_without_watch(watch: Watch, code: str, status: int, output: str) -> None:
    found, _, error = watch(code)
    assert found == status
    assert error.endswith(f"{output}{NOTHING}")
    assert "pytest_dtdispatch" not in error


def test_unwatched_or_missing_script_is_an_error(watch: Watch) -> None:
    for code in ("import sys; sys.exit()", "import torch\ntorch.ones(8) + 1"):
        with pytest.raises(MeasurementError, match=r"^train.py called no op on DTensors; processes"):
            watch(code)
    with pytest.raises(MeasurementError, match=r"^watch nope.py: cannot be read: No such file or directory$"):
        watch_script("nope.py", [])


def test_script_name_with_dash_follows_separator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--budget", "--", "-nope.py", "--lr"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "dtdispatch: watch -nope.py: cannot be read: No such file or directory"


@pytest.mark.parametrize("words", [["--warm", "7"], ["--ma", "misses=0", "--budget"], ["--budget-st", "5"]])
def test_value_of_abbreviated_flag_is_no_script(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *words, "nope.py"]) == 2
    assert capsys.readouterr().err == "dtdispatch: watch nope.py: cannot be read: No such file or directory\n"


def test_script_without_optimizer_is_reported(watch: Watch) -> None:
    step = "distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)]).sum()\ndist.destroy_process_group()"
    status, _, error = watch(MESH + step)
    [line] = error.splitlines()
    assert status == 0
    assert "no optimizer stepped" in line
    assert "in all 1 call, 1 miss: 1 sum.default. To mark steps, " in line
    assert "StepWatch" in line


LOOP_IN_THREAD = f"""
import threading
{MESH}
def train():
    weight = torch.nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Replicate()]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()

thread = threading.Thread(target=train)
thread.start()
thread.join()
dist.destroy_process_group()
"""


def test_loop_in_another_thread_is_reported(watch: Watch) -> None:
    status, _, error = watch(LOOP_IN_THREAD)
    [line] = error.splitlines()
    assert status == 0
    assert "its optimizers stepped in other threads, so its steps are unknown. To mark steps, " in line
    assert "a StepWatch in their thread" in line


def test_recorded_calls_of_stepless_script_are_limited(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_dtdispatch.steps.counter.MAX_RECORDED", 10)
    calls = "x = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])\nfor _ in range(30):\n    x * 2"
    _, _, error = watch(f"{MESH}{calls}\ndist.destroy_process_group()")
    [(noted, other)] = re.findall(r"in all 30 calls, 1 miss: (\d+) mul.Tensor, (\d+) other\.", error)
    assert 0 < int(noted) < 10
    assert int(noted) + int(other) == 30


def test_script_runs_as_the_main_module(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MeasurementError):
        watch("code = 3\nprint(__name__, __file__, __spec__)\nimport __main__\nprint(__main__.code)")
    assert capsys.readouterr().out == f"__main__ {Path('train.py').absolute()} None\n3\n"


def test_only_first_rank_prints(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    assert watch("print('out')") == (0, "out\n", "")


STEPS = f"""
import sys, time
{MESH}
weight = torch.nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Replicate()]))
x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
optimizer = torch.optim.SGD([weight], lr=0.1)
for i in range(int(sys.argv[1])):
    (x @ weight).redistribute(mesh, [Replicate()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.021)
dist.destroy_process_group()
"""
STEP = STEPS.splitlines().index("    (x @ weight).redistribute(mesh, [Replicate()]).sum().backward()")


@pytest.mark.slow
def test_budget_follows_the_warmup_and_has_lines(watch: Watch) -> None:
    status, _, error = watch(STEPS.replace("sys.argv[1]", "131"), budget_steps=20)
    assert status == 0
    assert re.search(r"^StepWatch: steps \d to 12\d \(budget\)$", error, re.MULTILINE)
    assert re.search(rf"^  train.py:{STEP + 1} ", error, re.MULTILINE)
    assert error.index("  measured ") < error.index("StepWatch: 131 steps, 0 disturbed")
    assert "no budget" not in error


@pytest.mark.parametrize("steps", ["1", "8"])
def test_short_script_reports_steps_needed_for_budget(watch: Watch, steps: str) -> None:
    _, _, error = watch(STEPS.replace("sys.argv[1]", steps), budget_steps=20)
    [line] = [line for line in error.splitlines() if "no budget" in line]
    had, takes = re.findall(r"after (\d+) steps?, and one takes about (\d+)$", line)[0]
    assert (had, int(takes) >= 120) == (steps, True)
    assert f"StepWatch: {steps} steps, 0 disturbed" in error
    _, _, error = watch(STEPS.replace("sys.argv[1]", steps))
    assert "no budget" not in error


@pytest.mark.parametrize("words", [["--budget-steps", "1"], ["--budget-steps=1", "--budget"]])
def test_budget_length_is_a_flag(watch: Watch, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A budget with one step of each kind takes 17 steps; the flag's value is not parsed as the script."""
    Path("train.py").write_text(STEPS)
    assert main(["watch", *words, "train.py", "20"]) == 0
    error = capsys.readouterr().err
    assert re.search(r"^StepWatch: steps \d to [12]\d \(budget\)$", error, re.MULTILINE)
    assert "StepWatch: 20 steps, 0 disturbed" in error
    assert main(["watch", "--budget-steps", "0", "train.py"]) == 2


def test_running_profiler_of_script_prevents_a_budget(watch: Watch) -> None:
    opened = "profiler = torch.profiler.profile()\nprofiler.start()\nfor i"
    code = STEPS.replace("sys.argv[1]", "4").replace("for i", opened)
    status, _, error = watch(f"{code}profiler.stop()", budget_steps=20)
    assert status == 0
    assert error.count("no budget: a profiler of torch is running") == 1
    assert "StepWatch: 4 steps" in error


MODULE = f"""
import sys
import __main__
from .part import name
{MESH}
distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)]).sum()
print(sys.argv, sys.path[0], name, __name__, __spec__.name, __file__, __main__.name)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.long
def test_module_runs_like_python_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "part.py").write_text("name = 'part'")
    (tmp_path / "made" / "train.py").write_text(MODULE)
    words = "-m", "made.train", "--budget", "-m", "x"

    def run(*before: str) -> str:
        command = [sys.executable, *before, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    plainly = run()
    assert "'--budget', '-m', 'x'] " in plainly
    assert run("-m", "pytest_dtdispatch", "watch") == plainly
    assert run(str(Path(sys.executable).with_name("dtdispatch")), "watch", "--budget") == plainly


def test_missing_module_is_distinguished_from_failing_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    for name, message in (("nope", "No module named nope"), ("json", "No module named json.__main__")):
        with pytest.raises(MeasurementError, match=f"^watch -m {name}: {message}"):
            watch_module(name, [])
    Path("broken_module.py").write_text("import nope")
    assert watch_module("broken_module", []) == 1
    error = capsys.readouterr().err
    assert 'broken_module.py", line 1, in <module>' in error
    assert "ModuleNotFoundError: No module named 'nope'" in error
    assert "runpy" not in error


@pytest.mark.slow
@pytest.mark.long
def test_only_first_rank_measures_and_prints_budget(tmp_path: Path) -> None:
    group = next(line for line in MESH.splitlines() if "init_process_group" in line)
    code = STEPS.replace(group, "dist.init_process_group('gloo')").replace("(4,)", "(2,)")
    (tmp_path / "train.py").write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = finish([*torchrun, "-m", "pytest_dtdispatch", "watch", "--budget", "-m", "train", "141"], tmp_path)
    assert run.status == 0, run.text
    assert len(re.findall(r"^  measured ", run.text, re.MULTILINE)) == 1
    assert run.text.count("StepWatch: 141 steps") == 1
    assert f"train.py:{STEP + 1} " in run.text
    assert "redistribution collectives" in run.text
