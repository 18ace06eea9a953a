"""``dtdispatch watch --max``: a program that must not miss after its warm-up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import FSDP_WITHOUT_CUDA, is_replanned_for_scalar_value, needs, on_a_fake_mesh
from tests.rank_runs import finish
from tests.walked_pages import COLUMNS, ROOT, walk
from tests.watched_scripts import MESH, Watch, line_in

pytestmark = pytest.mark.torch

STEP = """    (distribute_tensor(torch.ones(rows, 8), mesh, [Shard(0)]) @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PREPARED = f"""{MESH}
weight = torch.nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Replicate()]))
optimizer = torch.optim.SGD([weight], lr=0.1)
"""
FORTY = f"""{PREPARED}
try:
    for i in range(45):
        rows = 12 if i == 39 else 8
    {STEP.replace(chr(10), chr(10) + "    ").rstrip()}
    print("done", i + 1)
finally:
    print("cleanup after", i + 1)
    dist.destroy_process_group()
"""
OWN_WARMUP = f"""{PREPARED}
for rows in (8, 8, 16, 16, 24, 8, 16, 24, 8, 32, 32):
{STEP}
dist.destroy_process_group()
"""
TITAN = f"""
import sys
{MESH}
from torch.distributed.fsdp import fully_shard

model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
samples = torch.utils.data.TensorDataset(torch.rand(238, 16))
for number, (batch,) in enumerate(torch.utils.data.DataLoader(samples, batch_size=8), 1):
    model(batch).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if number % 10 == 0:  # a checkpoint
        saved = {{name: value.full_tensor() for name, value in model.state_dict().items()}}
    if number == 24 and "norms" in sys.argv:
        logged = [each.norm().full_tensor().item() for each in model.parameters()]
dist.destroy_process_group()
"""
THREADS = f"""
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
{PREPARED}
together = Barrier(4)

def forward(rows):
    together.wait()
    x = distribute_tensor(torch.ones(rows, 8), mesh, [Shard(0)])
    return (x @ weight).sum()

with ThreadPoolExecutor(4) as pool:
    for i in range(20):
        losses = [*pool.map(forward, (8, 8, 8, 16 if i == 15 else 8))]
        sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
NO_MISS = {"misses": 0}


def violations(error: str) -> list[tuple[int, str]]:
    """Return the number of each step over its limits, and its block."""
    found = re.findall(r"^dtdispatch: .*step (\d+): over its limits\n((?:  .*\n)+)", error, re.MULTILINE)
    return [(int(number), block) for number, block in found]


def test_miss_in_fortieth_step_fails_the_script(watch: Watch) -> None:
    status, out, error = watch(FORTY, most=NO_MISS)
    [(number, block)] = violations(error)
    assert (status, number, out) == (1, 40, "done 45\ncleanup after 45\n")
    assert f"misses=0, and step 40 has 5, at train.py:{line_in(FORTY, '(distribute')}" in block
    key = "mm.default(f32[12,8]S0, f32[8,8]R)@4: shape of self [12,8], was [8,8], at train.py:"
    assert key in block


def test_script_below_its_limits_succeeds(watch: Watch) -> None:
    assert watch(FORTY.replace("12", "8"), most=NO_MISS)[0] == 0
    assert watch(FORTY, most={"misses": 5})[0] == 0
    assert watch(FORTY, most={"misses": 4})[0] == 1


@pytest.mark.slow
def test_stopped_program_runs_its_cleanup(tmp_path: Path) -> None:
    at_exit = "import atexit\natexit.register(print, 'at exit')\n"
    (tmp_path / "train.py").write_text(f"{at_exit}{FORTY}")
    command = [sys.executable, "-m", "pytest_dtdispatch", "watch", "--max", "misses=0", "--stop", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "cleanup after 40\nat exit\n")
    [(number, block)] = violations(ran.stderr)
    assert (number, "\n  the program ends here, with status 1\n" in block) == (40, True)
    assert "StepWatch: 40 steps, 1 disturbed" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("handler", "ends"),
    [("except Exception", True), ("except KeyboardInterrupt", True), ("except BaseException", False)],
)
def test_stop_passes_handlers_of_errors(watch: Watch, handler: str, ends: bool) -> None:
    code = FORTY.replace("finally:", f"{handler}:\n    print('caught')\nfinally:")
    status, out, _ = watch(code, most=NO_MISS, stops=True)
    assert (status, "caught" in out) == (1, not ends)


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(7)", 7), ("sys.exit(0)", 1), ("sys.exit(256)", 1), ("1 / 0", 1)]
)
def test_status_of_a_failed_program_remains(watch: Watch, ending: str, status: int) -> None:
    assert watch(f"import sys\n{FORTY}\n{ending}", most=NO_MISS)[0] == status


def test_declared_warmup_is_not_judged(watch: Watch) -> None:
    status, _, error = watch(OWN_WARMUP, most=NO_MISS)
    assert (status, [number for number, _ in violations(error)]) == (1, [3])
    status, _, error = watch(OWN_WARMUP, most=NO_MISS, warmup=5)
    [(number, block)] = violations(error)
    assert (status, number) == (1, 10)
    assert "mm.default(f32[32,8]S0, f32[8,8]R)@4: shape of self [32,8], was [24,8]" in block
    assert watch(OWN_WARMUP.replace(", 32, 32", ""), most=NO_MISS, warmup=5)[0] == 0


@pytest.mark.parametrize("code", [OWN_WARMUP, f"{PREPARED}\nweight @ weight\ndist.destroy_process_group()"])
def test_limits_that_judge_nothing_fail(watch: Watch, code: str) -> None:
    status, _, error = watch(code, most=NO_MISS, warmup=40)
    steps = 11 if code is OWN_WARMUP else 0
    assert status == 1
    assert error.count(f"max judged nothing: no step came after the warm-up ({steps} steps)\n") == 1
    assert watch(code, warmup=40)[0] == 0


@needs(FSDP_WITHOUT_CUDA)
@pytest.mark.slow
def test_training_loop_names_the_step_that_missed(watch: Watch) -> None:
    """Data loader, FSDP2, clipping, scheduler and checkpoints do not miss; norms of parameters do."""
    if on_a_fake_mesh(is_replanned_for_scalar_value):
        pytest.skip("AdamW of this torch misses in each step")
    assert watch(TITAN, most=NO_MISS)[0] == 0
    status, _, error = watch(TITAN, arguments=["norms"], most=NO_MISS)
    [(number, block)] = violations(error)
    assert (status, number) == (1, 25)
    assert f"at train.py:{line_in(TITAN, 'logged')}" in block
    assert "linalg_vector_norm.default(f32[16,16]S0)@4: " in block
    assert "shape of self [16,16], was " in block
    status, _, error = watch(TITAN, most={"cache_growth": 0})
    assert (status, [number for number, _ in violations(error)]) == (1, [11])  # plans of the first checkpoint


def test_miss_in_one_of_four_threads_is_named(watch: Watch) -> None:
    status, _, error = watch(THREADS, most=NO_MISS)
    [(number, block)] = violations(error)
    assert (status, number) == (1, 16)
    for text in ("return (x @ weight)", "sum(losses)"):
        assert f"train.py:{line_in(THREADS, text)} (" in block
    assert "mm.default(f32[16,8]S0, f32[8,8]R)@4: shape of self [16,8], was [8,8]" in block


@pytest.mark.usefixtures("watch")
def test_flags_of_limits_precede_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    code = OWN_WARMUP.replace("(8, 8", "(*map(int, sys.argv[2:]), 8").replace(
        "import torch\n", "import sys, torch\n", 1
    )
    Path("train.py").write_text(code)
    ShardingCaches().clear_all()
    flags = ["--max", "misses=0", "--max=cache_growth=99", "--warmup", "7"]
    assert main(["watch", *flags, "train.py", "--max", "40", "8"]) == 1
    assert [number for number, _ in violations(capsys.readouterr().err)] == [11]


@pytest.mark.usefixtures("watch")
def test_first_step_is_judged_without_a_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(OWN_WARMUP)
    ShardingCaches().clear_all()
    assert main(["watch", "--max", "misses=0", "--warmup", "0", "train.py"]) == 1
    assert [number for number, _ in violations(capsys.readouterr().err)] == [1]


@pytest.mark.slow
def test_documented_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    environment = os.environ | {"COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    ran = next(walk(ROOT / "docs" / "outside.md", tmp_path, environment))
    assert (ran.command, ran.status) == ("dtdispatch watch --max misses=0 train.py", 1)
    assert not ran.missing, ran.printed


RANKS = f"""
import os
{PREPARED}
for i in range(30):
    rows = 12 if i == 19 and dist.get_rank() == 1 else 8
    x = DTensor.from_local(torch.ones(rows, 8), mesh, [Shard(0)])
    (x @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {{dist.get_rank()}} done")  # one write, as torchrun runs python -u
dist.barrier()  # torchrun ends all ranks when one has ended with status 1
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--stop"]])
def test_rank_that_misses_alone_is_named(tmp_path: Path, flags: list[str]) -> None:
    group = next(line for line in MESH.splitlines() if "init_process_group" in line)
    code = RANKS.replace(group, "dist.init_process_group('gloo')").replace("(4,)", "(2,)")
    (tmp_path / "train.py").write_text(code.replace("import Replicate", "import DTensor, Replicate"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # Without --, torchrun takes --max for an abbreviation of --max-restarts.
    watched = ["-m", "--", "pytest_dtdispatch", "watch", "--max", "misses=0", *flags, "train.py"]
    run = finish([*torchrun, *watched], tmp_path)
    assert run.status == 1, run.text
    assert re.findall(r"rank (\d): step (\d+): over", run.text) == [("1", "20")]
    assert ("ranks that continue fail or wait in their next collective" in run.text) is bool(flags)
    assert ("rank 0 done" in run.text) == (not flags)
