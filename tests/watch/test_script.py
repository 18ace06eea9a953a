"""``dtdispatch watch`` runs a script as Python does, and says what its steps did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAINING = """
import sys
assert "pytest" not in sys.modules
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
make = lambda *shape: torch.nn.Parameter(distribute_tensor(torch.ones(*shape), mesh, [Replicate()]))
up, down = make(8, 8), make(8, 8)
optimizers = [torch.optim.SGD([each], lr=0.1) for each in (up, down)]
for i in range(8):
    x = distribute_tensor(torch.ones(4 if i != 5 else 8, 8), mesh, [Shard(0)])
    (x @ up @ down).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""

MESH = (
    "import torch.distributed.tensor, torch.testing._internal.distributed.fake_pg as fake; "
    "torch.distributed.init_process_group('fake', rank=0, world_size=4, store=fake.FakeStore()); "
    "mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (4,))"
)
LINE = 1 + TRAINING.splitlines().index("    (x @ up @ down).sum().backward()")


def watch(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(code)
    command = [sys.executable, "-m", "pytest_dtdispatch", "watch", "train.py", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def ours(process: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in process.stderr.splitlines() if line.startswith("dtdispatch: ")]


def test_the_steps_of_a_training_script_end_with_those_of_its_optimizer(tmp_path: Path) -> None:
    process = watch(tmp_path, TRAINING + "\nprint(sys.argv, sys.path[0])", "--lr", "--", "3")
    assert process.returncode == 0
    assert process.stdout == f"['{tmp_path / 'train.py'}', '--lr', '--', '3'] {tmp_path}\n"
    lines = ours(process)
    assert lines[0].startswith("dtdispatch: step 1: warm-up: ")
    [missed] = [line for line in lines if " misses: " in line]
    assert missed.startswith("dtdispatch: step 6: ")
    assert f"train.py:{LINE} (forward)" in missed
    assert "StepWatch: 8 steps, 1 disturbed" in process.stderr


def test_a_script_that_raises_shows_its_own_traceback_and_what_was_seen_until_then(tmp_path: Path) -> None:
    code = f"{TRAINING}\ndef fail():\n    raise KeyError('mine')\nfail()"
    process = watch(tmp_path, code)
    assert process.returncode == 1
    traceback = process.stderr[process.stderr.index("Traceback") :]
    assert traceback.count('File "') == 2
    assert "pytest_dtdispatch" not in traceback.partition("KeyError: 'mine'")[0]
    assert "StepWatch: 8 steps" in traceback


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 +", 1, "SyntaxError: invalid syntax\n"),
    ],
)
def test_what_fails_fails_as_it_does_without_us(tmp_path: Path, code: str, status: int, said: str) -> None:
    process = watch(tmp_path, code)
    assert process.returncode == status
    before, after = process.stderr.rsplit("dtdispatch: ", 1)
    assert before.endswith(said)
    assert "pytest_dtdispatch" not in before
    assert after.startswith("train.py called no op on DTensors; processes")
    assert after.count("\n") == 1


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit()",
        f"{MESH}\ntorch.ones(8) + 1",
    ],
)
def test_nothing_watched_is_no_success(tmp_path: Path, code: str) -> None:
    process = watch(tmp_path, code)
    assert process.returncode == 2
    [line] = process.stderr.splitlines()
    assert line.startswith("dtdispatch: train.py called no op on DTensors; processes")


def test_a_script_without_an_optimizer_is_told_in_one_line(tmp_path: Path) -> None:
    code = TRAINING.replace("optimizer.step()", "pass")
    [line] = ours(watch(tmp_path, code))
    assert "no optimizer stepped" in line
    assert "calls" in line


def test_it_is_the_main_module_as_python_makes_it(tmp_path: Path) -> None:
    code = "print(__name__, __file__, __spec__)"
    code += "\nimport __main__\nprint(__main__.code)"
    process = watch(tmp_path, f"code = 3\n{code}")
    assert process.stdout == f"__main__ {tmp_path / 'train.py'} None\n3\n"


def test_a_script_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_dtdispatch", "watch", str(tmp_path / "nope.py")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stdout == ""
    assert (
        process.stderr
        == f"dtdispatch: watch {tmp_path / 'nope.py'}: cannot be read: No such file or directory\n"
    )


def test_other_ranks_than_the_first_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert ours(watch(tmp_path, "print('out')")) == []
