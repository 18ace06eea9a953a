"""``dtdispatch watch`` runs a script as Python does, and says what its steps did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.errors import WatchError
from pytest_dtdispatch.watch.script import watch_script

pytestmark = pytest.mark.torch

MESH = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
"""
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
def test_steps_end_with_the_optimizer_s_and_an_error_is_its_own(tmp_path: Path, monkeypatch: Any) -> None:
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


Watch = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Watch:
    """Watch a script in this process; return its status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(code: str) -> tuple[int, str, str]:
        Path("train.py").write_text(code)
        return watch_script("train.py", []), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 +", 1, "SyntaxError: invalid syntax\n"),
    ],
)
def test_what_fails_fails_as_it_does_without_us(watch: Watch, code: str, status: int, said: str) -> None:
    found, _, error = watch(code)
    assert found == status
    assert error.endswith(f"{said}{NOTHING}")
    assert "pytest_dtdispatch" not in error


def test_nothing_watched_is_no_success_and_a_script_that_is_not_there_is_told(watch: Watch) -> None:
    for code in ("import sys; sys.exit()", "import torch\ntorch.ones(8) + 1"):
        with pytest.raises(WatchError, match=r"^train.py called no op on DTensors; processes"):
            watch(code)
    with pytest.raises(WatchError, match=r"^watch nope.py: cannot be read: No such file or directory$"):
        watch_script("nope.py", [])


def test_a_script_without_an_optimizer_is_told(watch: Watch) -> None:
    step = "distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)]).sum()\ndist.destroy_process_group()"
    status, _, error = watch(MESH + step)
    [line] = error.splitlines()
    assert status == 0
    assert "no optimizer stepped" in line
    assert line.endswith("in all 1 call, 1 miss")


def test_it_is_the_main_module_as_python_makes_it(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WatchError):
        watch("code = 3\nprint(__name__, __file__, __spec__)\nimport __main__\nprint(__main__.code)")
    assert capsys.readouterr().out == f"__main__ {Path('train.py').absolute()} None\n3\n"


def test_other_ranks_than_the_first_say_nothing(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    assert watch("print('out')") == (0, "out\n", "")
