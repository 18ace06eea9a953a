"""Successful runs of several ranks: one table, one set of files, the same results as one process."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.report.run import read_run
from pytest_dtdispatch.torchapi.observe import has_local_mode
from tests.plugin_runs import measure
from tests.rank_runs import (
    GOOD,
    IMPORTS,
    MEASURED,
    QUIET,
    Finished,
    by_fork,
    by_pytest,
    environment,
    finish,
    run_ranks,
)

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Seeds as pytest-randomly does: without an explicit seed, each process generates its own.
SHUFFLES = """
import random

def pytest_addoption(parser):
    parser.addoption("--randomly-seed", dest="randomly_seed", default="default")

def pytest_configure(config):
    if config.option.randomly_seed == "default":
        config.option.randomly_seed = random.Random().getrandbits(32)

def pytest_collection_modifyitems(config, items):
    random.Random(config.option.randomly_seed).shuffle(items)
"""
SUITE = ("--pyargs", "pytest_dtdispatch.suite", "-k", "ranks", "--dtdispatch-timeout=30")
COLLECTIVES = """
import torch.nn.functional as F
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import loss_parallel

S, R = Shard, Replicate()

def make(mesh):
    torch.manual_seed(RANK)
    local = torch.randn(8, 8)
    partial = DTensor.from_local(local, mesh, [Partial()])
    whole = torch.arange(64.0).reshape(8, 8).sin()
    row, column = (distribute_tensor(whole, mesh, [S(dim)]) for dim in (0, 1))
    tokens = distribute_tensor(torch.arange(8), mesh, [R])
    image = distribute_tensor(torch.arange(128.0).sin().reshape(1, 2, 4, 16), mesh, [S(3)])
    kernel = distribute_tensor(torch.arange(36.0).sin().reshape(2, 2, 3, 3), mesh, [R])
    bias = distribute_tensor(torch.ones(2), mesh, [R])  # old convolution rules require a bias

    def loss():
        with loss_parallel():
            return F.cross_entropy(column, tokens).redistribute(placements=[R])

    return {
        "all_gather": lambda: row.redistribute(placements=[R]),
        "all_reduce": lambda: partial.redistribute(placements=[R]),
        "reduce_scatter": lambda: partial.redistribute(placements=[S(0)]),
        "all_to_all": lambda: row.redistribute(placements=[S(1)]),
        "scatter": lambda: distribute_tensor(whole, mesh, [S(0)]),
        "broadcast": lambda: distribute_tensor(whole, mesh, [R]),
        "uneven": lambda: distribute_tensor(whole[:5], mesh, [S(0)]).redistribute(placements=[R]),
        "op that gathers": lambda: row @ row,
        "op that reshards": lambda: row + column,
        "op that reduces": lambda: (column @ row).redistribute(placements=[R]),
        "norm": lambda: row.norm().redistribute(placements=[R]),
        "max": lambda: row.max().redistribute(placements=[R]),
        "softmax": lambda: torch.softmax(row, 0),
        "in place": lambda: row.clone().add_(column),
        "random": lambda: torch.dropout(row, 0.5, train=True),
        "masked partial": lambda: F.embedding(tokens, row).redistribute(placements=[R]),
        "gathered indices": lambda: row.argmax(0).redistribute(placements=[R]),
        "send and receive": lambda: F.conv2d(image, kernel, bias, padding=1),
        "parallel loss": loss,
        "equal": lambda: torch.equal(row, column.redistribute(placements=[S(0)])),
    }

WITHOUT_A_RULE = [] if "argmax.default" in ops_with_a_rule() else ["gathered indices"]

@pytest.mark.filterwarnings("ignore:DTensor random operators")
@pytest.mark.parametrize("way", ["capture", "call"])
def test_same(dtdispatch, device_mesh, way):
    for name in [name for name in make(device_mesh) if name not in WITHOUT_A_RULE]:
        seen = []
        for measured in (False, True):
            run = make(device_mesh)[name]
            torch.manual_seed(7)
            if not measured:
                result = run()
            elif way == "call":
                result = dtdispatch.call(run, name=name)
            else:
                with dtdispatch.capture():
                    result = run()
            values = torch.tensor(result) if isinstance(result, bool) else result.to_local().clone()
            seen.append((values, torch.get_rng_state()))
        for ours, theirs in zip(*seen):
            assert torch.equal(ours, theirs), name
"""
RPC = """
from torch.distributed import rpc

@pytest.mark.filterwarnings("error", "ignore:You are using a Backend:FutureWarning")
@pytest.mark.dtdispatch(backend="gloo", rpc=True)
@pytest.mark.parametrize("again", [1, 2])
def test_rpc(process_group, again):
    other = (RANK + 1) % dist.get_world_size()
    assert rpc.rpc_sync(f"worker{other}", max, args=(RANK, 10 + other)) == 10 + other

def test_it_is_over(device_mesh):
    with pytest.raises(RuntimeError, match="not been initialized"):
        rpc.get_worker_info()
"""
GOOD_HIT = re.compile(r"test_good\.py::.*::hit")
LATE = """
import contextlib, threading, time

def come_late(group):
    time.sleep(0.5)
    with contextlib.suppress(RuntimeError):  # if this rank's group is closed
        group.allreduce([torch.ones(8)]).wait()

@pytest.mark.dtdispatch(backend="gloo")
def test_late(process_group):
    if RANK:
        threading.Thread(target=come_late, args=(dist.group.WORLD,)).start()
    else:
        dist.all_reduce(torch.ones(8), async_op=True)
"""
NEEDS_NCCL = """
@pytest.mark.dtdispatch(backend="nccl")
def test_nccl(device_mesh):
    pass
"""
LOCAL = """
@pytest.mark.dtdispatch(backend="local", mesh=(2, 2))
def test_every_rank_has_its_own_numbers(dtdispatch, device_mesh):
    whole = torch.arange(64.0).reshape(8, 8)
    a = distribute_tensor(whole, device_mesh, [Shard(0), Shard(1)])
    with dtdispatch.capture():
        b = a @ a
    c = dtdispatch.call(lambda: (a + a).redistribute(placements=[Replicate(), Replicate()]), name="gather")
    for rank in range(4):
        rows, columns = 4 * (rank // 2), 4 * (rank % 2)
        of_rank = a.to_local()._local_tensors[rank]
        assert torch.equal(of_rank, whole[rows : rows + 4, columns : columns + 4])
        assert torch.equal(c.to_local()._local_tensors[rank], whole + whole)
    assert torch.equal(b.full_tensor().reconcile(), whole @ whole)

def test_it_is_over():
    assert type(torch.ones(2) + 1) is torch.Tensor
"""


def row_names(file: Path) -> list[str]:
    return sorted(row["fullname"] for row in json.loads(file.read_text())["benchmarks"])


def run_nodes(folder: Path, file: Path) -> list[Finished]:
    """Run the suite on two simulated machines with one rank each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--local-addr=localhost"]
    command += ["-m", "pytest", *QUIET, *MEASURED, *SUITE, f"--benchmark-json={file}"]
    ended: list[Finished] = []

    def start_other(process: subprocess.Popen[str]) -> None:
        other = subprocess.run(
            command, cwd=folder, env=environment({}), capture_output=True, text=True, check=False, timeout=110
        )
        ended.append(Finished(other.returncode, other.stdout + other.stderr, 0.0))

    return [finish(command, folder, start_other), *ended]


@pytest.mark.long
def test_suite_rows_are_equal_for_every_launcher(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("pytest", "nodes")}
    run = run_ranks(tmp_path, 2, *SUITE, f"--benchmark-json={files['pytest']}", launcher=by_pytest)
    assert run.status == 0, run.text
    assert run.text.count(" dtdispatch ==") == 1
    assert "2 ranks on 1 machine" not in run.text  # -q
    assert "10 passed" in run.text
    nodes = run_nodes(tmp_path, files["nodes"])
    assert [node.status for node in nodes] == [0, 0], [node.text for node in nodes]
    assert sum(node.text.count(" dtdispatch ==") for node in nodes) == 1
    of_one_machine, of_two = map(row_names, files.values())
    assert len(of_one_machine) > 40
    assert of_two == of_one_machine


COVERAGE = """
class Coverage:
    @classmethod
    def current(cls):
        return cls()

    def get_option(self, name):
        return {"run:data_file": ".coverage"}[name]
"""
OWN_COVERAGE = """
def test_file():
    assert os.environ["COVERAGE_FILE"] == os.path.abspath(f".coverage.rank{RANK}")
"""


def test_ranks_compute_equal_results_and_save_every_sample(tmp_path: Path) -> None:
    """All checks share one run, because importing torch on each rank takes most of the time."""
    # The test that leaves a pending collective runs last: gloo may end the process when it times out.
    files = {
        "coverage": OWN_COVERAGE,
        "good": GOOD,
        "same": COLLECTIVES,
        "rpc": RPC,
        "nccl": NEEDS_NCCL,
        "unfinished": LATE,
    }
    for name, source in files.items():
        (tmp_path / f"test_{name}.py").write_text(IMPORTS + source)
    (tmp_path / "coverage.py").write_text(COVERAGE)
    (tmp_path / "conftest.py").write_text("import coverage")
    saved = ("--benchmark-autosave", "--benchmark-json=rows.json")
    written = ("--dtdispatch-export=csv:rows.csv", "--junitxml=junit.xml")
    flags = ("--dtdispatch-rounds=1", "-odtdispatch_rank_stat=max", "-rsp", "-v")
    run = run_ranks(tmp_path, 2, *saved, *written, *flags, launcher=by_pytest)
    assert run.status == 0, run.text
    assert len(re.findall(r"^PASSED test_same\.py::", run.text, re.MULTILINE)) == 2
    # RPC starts and stops several times with a group.
    assert len(re.findall(r"^PASSED test_rpc\.py::", run.text, re.MULTILINE)) == 3
    # Each rank has its own file of coverage.
    assert "PASSED test_coverage.py::test_file" in run.text
    assert "run coverage combine, then report" in run.text
    # A group is destroyed while its collective is pending: up to torch 2.7 the program hung.
    assert "PASSED test_unfinished.py::test_late" in run.text
    if torch.cuda.device_count() < 2:
        assert re.search(r"SKIPPED .*needs a CUDA device for each of the 2 ranks", run.text)
    # Only the first rank writes files.
    assert "2 ranks on 1 machine" in run.text
    assert len(list((tmp_path / ".benchmarks").rglob("*.json"))) == 1
    assert 'tests="9"' in (tmp_path / "junit.xml").read_text()
    content = json.loads((tmp_path / "rows.json").read_text())
    machine = content["machine_info"]["dtdispatch"]
    assert (machine["ranks"], machine["rank_stat"], machine["backend"]) == (2, "max", "gloo")
    [hit] = [row for row in content["benchmarks"] if GOOD_HIT.fullmatch(row["fullname"])]
    info = hit["extra_info"]
    measured = [row for of_test in read_run(tmp_path / "rows.json").measured.values() for row in of_test]
    [samples] = [row.of(State.HIT) for row in measured if row.of(State.HIT)][:1]
    assert samples is not None
    assert [(rank, len(ns)) for rank, ns in samples.by_rank] == [(0, 2), (1, 2)]
    slowest = info["rank_medians_ns"][str(info["slowest_rank"])]
    assert slowest == max(info["rank_medians_ns"].values())
    assert hit["stats"]["median"] * 1e9 == pytest.approx(slowest)
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    [row] = [row for row in rows if "::test_good::" in row and "dispatch_hit_ns" in row]
    assert int(row.rpartition(",")[2]) == pytest.approx(slowest, abs=1)


@pytest.mark.long
def test_unmeasured_fixtures_and_rpc_use_real_ranks(tmp_path: Path) -> None:
    check = "def test_more(device_mesh): assert (dist.get_backend(), device_mesh.size()) == ('gloo', 2)"
    (tmp_path / "test_rpc.py").write_text(IMPORTS + RPC + GOOD + check)
    before, _ = by_fork(2)
    run = finish([*before, *QUIET, "--dtdispatch-device=cpu"], tmp_path)
    assert run.status == 0, run.text
    assert run.text.count("5 passed") == 2


@pytest.mark.skipif(not has_local_mode(), reason="this torch has no torch.distributed._local_tensor")
def test_local_backend_measures_every_rank(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_local=IMPORTS + LOCAL)
    result = measure(pytester, "-q", passed=2)
    assert re.search(r"mm\.default\(.*@2x2 .*\d", result.stdout.str())


def test_suite_skips_without_ranks_with_reason(pytester: pytest.Pytester) -> None:
    result = measure(pytester, "-rs", *SUITE)
    assert result.ret == pytest.ExitCode.OK
    message = "several ranks are needed: add --dtdispatch-nproc 4, or start pytest with torchrun"
    assert message in result.stdout.str()


@pytest.mark.cuda
@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs 2 CUDA devices, found {torch.cuda.device_count()}"
)
def test_suite_runs_on_nccl(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    run = run_ranks(tmp_path, 2, *SUITE, f"--benchmark-json={file}", "--dtdispatch-device=auto")
    assert run.status == 0, run.text
    machine = json.loads(file.read_text())["machine_info"]["dtdispatch"]
    assert (machine["backend"], machine["device"], machine["ranks"]) == ("nccl", "cuda", 2)
    assert machine["nccl"]
    assert machine["driver"]


UNLIKE = """
import contextlib, itertools
from torch.distributed.tensor import DTensor

def growing(mesh, ranks):
    rows = itertools.count(8)
    return lambda: DTensor.from_local(torch.rand(next(rows) if RANK in ranks else 8, 8), mesh, [Shard(0)]) + 1

def test_unlike(dtdispatch, device_mesh):
    dtdispatch.steps(growing(device_mesh, [1]), steps=2, name="train")

def test_swallowed(dtdispatch, device_mesh):
    with contextlib.suppress(Exception):
        dtdispatch.steps(growing(device_mesh, [0]), steps=2, name="moved")
"""


@pytest.mark.long
def test_ranks_judge_own_counts_and_shuffle_equally(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SHUFFLES)
    tests = (f"def test_{number}(device_mesh): assert device_mesh.size() == 2\n" for number in range(8))
    (tmp_path / "test_shuffled.py").write_text("".join(tests))
    (tmp_path / "test_unlike.py").write_text(IMPORTS + UNLIKE)
    (tmp_path / "expected.csv").write_text("test_unlike.py::test_unlike::train,misses_per_step,0,0\n")
    gates = ("--dtdispatch-expected=expected.csv", "--dtdispatch-max=misses=0")
    files = ("--dtdispatch-export=csv:found.csv", "--dtdispatch-export=markdown:run.md")
    run = run_ranks(tmp_path, 2, *gates, *files, "-pno:randomly")
    assert run.status == 1, run.text
    assert "2 failed, 8 passed, 2 gates failed" in run.text
    assert "misses_per_step 0 +-0 % on rank 1: 0 -> 1" in run.text
    assert "test_unlike::train: misses_per_step is 1 on rank 1, and fewer or none elsewhere" in run.text
    assert "test_unlike::train,misses_per_step,1\n" in (tmp_path / "found.csv").read_text()
    assert "test_swallowed (call): rank 0 failed: " in run.text
    table = (tmp_path / "run.md").read_text().partition("<details>")[0]
    assert table.startswith("## dtdispatch: failed, ")
    for test, rank in (("unlike::train", 1), ("swallowed::moved", 0)):
        (row,) = (line for line in table.splitlines() if f"misses=0 on rank {rank} " in line)
        assert row.startswith(f"| `test_unlike.py::test_{test}` | regressed | test\\_unlike.py:")
