"""Faults of ranks: each ends the run in time, names the rank and the cause, and leaves no process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rank_runs import (
    GOOD,
    IMPORTS,
    TIMEOUT_S,
    Finished,
    Launcher,
    by_pytest,
    by_torchrun,
    finish,
    run_ranks,
)

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]

STARTS_WITHIN_S = 45.0  # three ranks import torch on two busy cores
EARLIER = "test_it.py::test_add::add,dispatch_hit_ns,6940\n"
RAISES = """
def test_bad(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    if RANK == 1:
        raise ValueError("boom")
    with dtdispatch.capture():
        a.full_tensor()
"""
DIES = """
def test_bad(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        a.full_tensor()
"""
HANGS = """
def test_bad(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    if RANK == {rank}:
        time.sleep(1000)
    with dtdispatch.capture():
        a.full_tensor()
"""
SKIPS = """
@pytest.mark.skipif(RANK == 1, reason="not on this one")
def test_bad(dtdispatch, device_mesh):
    sharded(device_mesh)
"""
SKIPS_INSIDE = """
def test_bad(dtdispatch, device_mesh):
    if RANK == 1:
        pytest.skip("not on this one")
"""
OTHER_TEST = """
if RANK == 1:
    def test_more():
        pass
"""
MEASURES_ELSE = """
def test_bad(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a if RANK else a - a
"""
COMPILES_ELSE = """
def test_bad(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.compile(lambda x: x + x, a, backend="eager", name="one" if RANK else "another")
"""
LEAVES = """
def test_bad(dtdispatch, device_mesh):
    if RANK == 1:
        pytest.exit("enough", returncode=3)
"""
WAITS = """
def test_slow(device_mesh):
    open(f"at-{RANK}", "w").close()
    time.sleep(1000)
"""
RANK_ALONE = (sys.executable, "-m", "pytest", "-q", "--dtdispatch", f"--dtdispatch-timeout={TIMEOUT_S}")
launched_both_ways = pytest.mark.parametrize("launcher", [by_pytest, by_torchrun])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A file of an earlier run, which a run that breaks must not replace."""
    file = tmp_path / "results.csv"
    file.write_text(EARLIER)
    return file


def fail_on_ranks(
    folder: Path, body: str, *args: str, ranks: int = 2, launcher: Launcher = by_pytest
) -> Finished:
    """Run a good test and a bad one; what must hold of every fault is checked here."""
    (folder / "test_faults.py").write_text(f"{IMPORTS}\n{GOOD}\n{body}")
    run = run_ranks(folder, ranks, *args, launcher=launcher)
    assert run.status == 1, run.text
    assert run.seconds < STARTS_WITHIN_S + 2 * TIMEOUT_S, run.text
    for ours in ("pytest_dtdispatch/", "INTERNALERROR"):
        assert ours not in run.text, run.text
    return run


@launched_both_ways
def test_a_rank_that_raises_is_named_with_what_it_raised(tmp_path: Path, launcher: Launcher) -> None:
    run = fail_on_ranks(tmp_path, RAISES, ranks=3, launcher=launcher)
    assert "failed: test_faults.py::test_bad (call): rank 1 failed: ValueError: boom" in run.text
    assert "1 failed, 1 passed" in run.text
    assert 'raise ValueError("boom")' in run.text  # its own traceback is shown


def test_a_rank_that_is_killed_is_named_with_its_signal_and_test(tmp_path: Path, results: Path) -> None:
    run = fail_on_ranks(tmp_path, DIES, f"--dtdispatch-export=csv:{results}", ranks=3)
    assert "\nERROR: rank 1 was killed by SIGKILL in test_faults.py::test_bad" in run.text
    assert "Traceback" not in run.text
    assert results.read_text() == EARLIER


def test_torchrun_names_a_rank_that_is_killed(tmp_path: Path, results: Path) -> None:
    run = fail_on_ranks(tmp_path, DIES, f"--dtdispatch-export=csv:{results}", launcher=by_torchrun)
    assert "Signal 9 (SIGKILL)" in run.text
    assert "rank      : 1" in run.text
    assert results.read_text() == EARLIER


@launched_both_ways
def test_a_rank_that_hangs_is_named_with_where_it_hangs(
    tmp_path: Path, results: Path, launcher: Launcher
) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(EARLIER)
    args = (f"--dtdispatch-export=csv:{results}", f"--benchmark-json={saved}")
    run = fail_on_ranks(tmp_path, HANGS.format(rank=1), *args, ranks=3, launcher=launcher)
    assert f"failed: rank 1 did not end the call of test_faults.py::test_bad within {TIMEOUT_S} s" in run.text
    assert re.search(r'test_faults\.py", line \d+ in test_bad', run.text)
    assert f"{results} was not written: rank 1 did not end" in run.text
    assert results.read_text() == saved.read_text() == EARLIER


def test_the_first_rank_that_hangs_is_named_by_the_next(tmp_path: Path) -> None:
    run = fail_on_ranks(tmp_path, HANGS.format(rank=0))
    assert "ERROR: rank 1 could not go on; the end of its output:" in run.text
    assert f"rank 0 did not end the call of test_faults.py::test_bad within {TIMEOUT_S} s" in run.text


@pytest.mark.parametrize(
    ("body", "phase"), [(SKIPS, "setup"), (SKIPS_INSIDE, "call")], ids=["marked", "inside"]
)
def test_a_rank_that_skips_what_others_run_fails_the_test(tmp_path: Path, body: str, phase: str) -> None:
    run = fail_on_ranks(tmp_path, body, ranks=3)
    says = f"failed: test_faults.py::test_bad ({phase}): rank 1 skipped what ranks 0, 2 run: not on this one"
    assert says in run.text


@launched_both_ways
def test_a_rank_that_collects_other_tests_is_named_before_any_test_runs(
    tmp_path: Path, launcher: Launcher
) -> None:
    run = fail_on_ranks(tmp_path, OTHER_TEST, launcher=launcher)
    says = "ranks collected different tests: rank 1 has besides test_faults.py::test_more"
    assert f"failed: {says}" in run.text
    assert " passed" not in run.text


@launched_both_ways
def test_a_rank_that_cannot_import_a_module_is_named(tmp_path: Path, launcher: Launcher) -> None:
    run = fail_on_ranks(tmp_path, "if RANK == 1:\n    import no_such_module\n", launcher=launcher)
    why = "ModuleNotFoundError: No module named 'no_such_module'"
    assert f"failed: rank 1 could not collect test_faults.py: {why}" in run.text


def test_a_conftest_that_one_rank_cannot_import_is_shown(tmp_path: Path) -> None:
    on_one = 'import os\nif os.environ.get("RANK") == "1":\n    import no_such_module\n'
    (tmp_path / "conftest.py").write_text(on_one)
    run = fail_on_ranks(tmp_path, "")
    assert "ERROR: rank 1 ended with exit status 4" in run.text
    assert "No module named 'no_such_module'" in run.text


@pytest.mark.parametrize(
    ("body", "first", "other"),
    [
        (MEASURES_ELSE, "sub.Tensor(f32[8,8]S0, f32[8,8]S0)@2", "add"),
        (COMPILES_ELSE, "another", "one"),
    ],
    ids=["dispatch", "compile"],
)
def test_ranks_that_measure_different_things_are_told_so_at_once(
    tmp_path: Path, body: str, first: str, other: str
) -> None:
    run = fail_on_ranks(tmp_path, body)
    assert f"rank 0 at the start of {first}; rank 1 at the start of {other}" in run.text


def test_a_rank_that_ends_its_run_is_named_with_why(tmp_path: Path) -> None:
    run = fail_on_ranks(tmp_path, LEAVES)
    assert "rank 1 ended its run: exit status 3 (_pytest.outcomes.Exit: enough)" in run.text


@launched_both_ways
def test_ctrl_c_at_the_launcher_ends_every_rank(tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "test_slow.py").write_text(IMPORTS + WAITS)

    def interrupt(process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while len(list(tmp_path.glob("at-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)

    run = run_ranks(tmp_path, 2, launcher=launcher, meanwhile=interrupt)
    assert run.status == 1, run.text
    assert "KeyboardInterrupt" in run.text
    if launcher is by_pytest:
        assert "\nERROR: SIGINT: the 2 ranks were stopped" in run.text


def run_one_of_two(folder: Path, rank: int, port: int) -> Finished:
    """Run one rank alone, whose store is to be at a port of this machine."""
    (folder / "test_good.py").write_text(IMPORTS + GOOD)
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return finish(RANK_ALONE, folder, variables=variables)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = run_one_of_two(tmp_path, 0, port)
    assert run.status == 1
    assert f"ERROR: rank 0 cannot open a store: the port of 127.0.0.1:{port} is in use" in run.text
    assert "Traceback" not in run.text


def test_a_store_that_nobody_opens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run = run_one_of_two(tmp_path, 1, port)
    assert run.status == 1
    assert f"ERROR: rank 1 finds no store at 127.0.0.1:{port} within {TIMEOUT_S} s" in run.text


STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(1000)
"""
TAKES_THE_STORE_AWAY = """
def test_bad(dtdispatch, device_mesh):
    if RANK == 1:
        os.kill(int(os.environ["STORE_PID"]), signal.SIGKILL)
    time.sleep(1)
"""
BOTH = """
import os, subprocess, sys
ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_a_store_that_goes_away_is_named_and_ends_every_rank(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(f"{IMPORTS}\n{GOOD}\n{TAKES_THE_STORE_AWAY}")
    with subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        variables = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": store.stdout.readline().strip(),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "STORE_PID": str(store.pid),
        }
        run = finish([sys.executable, "-c", BOTH, *RANK_ALONE], tmp_path, variables=variables)
        store.kill()
    assert run.status == 1, run.text
    assert "failed: the store by which ranks exchange results went away: " in run.text
    assert "1 failed, 1 passed" in run.text or "1 passed, 1 error" in run.text
