"""A fault of a rank ends the run in time, names the rank and the cause, and leaves no process behind."""

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
import torch.distributed as dist

from tests.rank_runs import (
    GOOD,
    IMPORTS,
    TIMEOUT_S,
    Finished,
    Launcher,
    by_fork,
    by_pytest,
    by_torchrun,
    finish,
    run_ranks,
)

# A sample of the faults runs in `make test-long`, all of them in `make test-sweep`.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]

STARTS_WITHIN_S = 45.0  # three ranks import torch on two busy cores
NO_MODULE = "No module named 'no_such_module'"
EARLIER = "test_it.py::test_add::add,dispatch_hit_ns,6940\n"
# Faults of tests after which the run continues: all ranks fail the test and synchronize again.
TESTS = """
@pytest.mark.skipif(RANK == 1, reason="not on this one")
def test_skips(dtdispatch, device_mesh):
    sharded(device_mesh)

def test_skips_inside(dtdispatch, device_mesh):
    if RANK == 1:
        pytest.skip("not on this one")

def test_measures_else(dtdispatch, a):
    with dtdispatch.capture():
        a + a if RANK else a - a

def test_compiles_else(dtdispatch, a):
    dtdispatch.compile(lambda x: x + x, a, backend="eager", name="one" if RANK else "another")

def test_raises(dtdispatch, a):
    if RANK == 1:
        raise ValueError("boom")
    with dtdispatch.capture():
        a + a
"""
DIES = """
def test_bad(dtdispatch, a):
    with dtdispatch.capture():
        a + a
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        a.full_tensor()
"""
ABORTS = """
def test_bad(dtdispatch, a):
    if RANK == 1:
        os.abort()
    a.full_tensor()
"""
HANGS = """
def test_bad(dtdispatch, a):
    if RANK == {rank}:
        time.sleep(1000)
    with dtdispatch.capture():
        a.full_tensor()
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


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Create a file of an earlier run, which an aborted run must not replace."""
    file = tmp_path / "results.csv"
    file.write_text(EARLIER)
    return file


def fail_on_ranks(
    folder: Path, body: str, *args: str, ranks: int = 2, launcher: Launcher = by_fork
) -> Finished:
    """Run a passing and a failing test, and check the properties common to all faults."""
    (folder / "test_faults.py").write_text(f"{IMPORTS}\n{GOOD}\n{body}")
    run = run_ranks(folder, ranks, *args, launcher=launcher)
    assert run.status == 1, run.text
    assert run.seconds < STARTS_WITHIN_S + 2 * TIMEOUT_S, run.text
    for ours in ("pytest_dtdispatch/", "INTERNALERROR"):
        assert ours not in run.text, run.text
    return run


def test_diverging_rank_is_named(tmp_path: Path) -> None:
    text = fail_on_ranks(tmp_path, TESTS, ranks=3).text
    assert "4 failed, 1 passed, 1 error" in text, text
    assert "failed: test_faults.py::test_raises (call): rank 1 failed: ValueError: boom" in text
    assert 'raise ValueError("boom")' in text  # its own traceback is shown
    for test, phase in (("skips", "setup"), ("skips_inside", "call")):
        message = "rank 1 skipped what ranks 0, 2 run: not on this one"
        assert f"failed: test_faults.py::test_{test} ({phase}): {message}" in text
    start = "at the start of"
    for first, other in (("sub.Tensor(f32[8,8]S0, f32[8,8]S0)@3", "add"), ("another", "one")):
        assert re.search(f"rank 0 {start} {re.escape(first)}; ranks? 1.* {start} {other}", text)


def test_killed_rank_is_named(tmp_path: Path, results: Path) -> None:
    run = fail_on_ranks(tmp_path, DIES, f"--dtdispatch-export=csv:{results}", launcher=by_pytest)
    assert "\nERROR: rank 1 was killed by SIGKILL in test_faults.py::test_bad" in run.text
    assert "Traceback" not in run.text
    assert results.read_text() == EARLIER


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="torch prints stacks of fatal signals only on Linux")
def test_native_stack_of_an_aborted_rank_is_shown(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(f"{IMPORTS}\n{GOOD}\n{ABORTS}")
    run = run_ranks(tmp_path, 2, launcher=by_pytest)
    assert "ERROR: rank 1 was killed by SIGABRT in test_faults.py::test_bad" in run.text
    assert re.search(r"SIGABRT\(6\), PID: \d+, Thread \d+: \n frame #0: ", run.text), run.text


def test_hanging_rank_is_named_with_its_stack(tmp_path: Path, results: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(EARLIER)
    args = (f"--dtdispatch-export=csv:{results}", f"--benchmark-json={saved}")
    run = fail_on_ranks(tmp_path, HANGS.format(rank=1), *args, launcher=by_pytest)
    assert f"failed: rank 1 did not end the call of test_faults.py::test_bad within {TIMEOUT_S} s" in run.text
    assert re.search(r'test_faults\.py", line \d+ in test_bad', run.text)
    assert f"{results} was not written: rank 1 did not end" in run.text
    assert results.read_text() == saved.read_text() == EARLIER


@pytest.mark.sweep
def test_hanging_rank_zero_is_named_by_rank_one(tmp_path: Path) -> None:
    run = fail_on_ranks(tmp_path, HANGS.format(rank=0), launcher=by_torchrun)
    cause = f"rank 0 did not end the call of test_faults.py::test_bad within {TIMEOUT_S} s"
    assert f"ERROR: rank 1 could not continue: {cause}" in run.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def test_more(): pass", "ranks collected different tests: rank 1 also has {}::test_more"),
        pytest.param(
            *("import no_such_module", f"rank 1 could not collect {{}}: ModuleNotFoundError: {NO_MODULE}"),
            marks=pytest.mark.sweep,
        ),
    ],
    ids=["other tests", "no module"],
)
def test_rank_with_different_collection_fails_before_tests(tmp_path: Path, body: str, message: str) -> None:
    run = fail_on_ranks(tmp_path, f"if RANK == 1:\n    {body}\n")
    assert f"failed: {message.format('test_faults.py')}" in run.text
    assert "no tests ran" in run.text


@pytest.mark.sweep
def test_conftest_import_error_of_one_rank_is_shown(tmp_path: Path) -> None:
    on_one = 'import os\nif os.environ.get("RANK") == "1":\n    import no_such_module\n'
    (tmp_path / "conftest.py").write_text(on_one)
    run = fail_on_ranks(tmp_path, "", launcher=by_pytest)
    assert "ERROR: rank 1 ended with exit status 4" in run.text
    assert NO_MODULE in run.text


@pytest.mark.sweep
def test_rank_that_exits_early_is_named_with_reason(tmp_path: Path) -> None:
    run = fail_on_ranks(tmp_path, LEAVES)
    assert "failed: rank 1 ended early and did not end the call of test_faults.py::test_bad" in run.text
    assert "\nERROR: rank 1 ended with exit status 3; the end of its output:" in run.text
    assert "_pytest.outcomes.Exit: enough" in run.text


def wait_for_files(folder: Path, pattern: str, number: int) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while len(list(folder.glob(pattern))) < number and time.monotonic() < deadline:
        time.sleep(0.1)


def test_ctrl_c_at_the_launcher_ends_every_rank(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(IMPORTS + WAITS)

    def interrupt(process: subprocess.Popen[str]) -> None:
        wait_for_files(tmp_path, "at-*", 2)
        os.kill(process.pid, signal.SIGINT)

    run = run_ranks(tmp_path, 2, launcher=by_pytest, meanwhile=interrupt)
    assert run.status == 1, run.text
    assert "KeyboardInterrupt" in run.text
    assert "\nERROR: SIGINT: the 2 ranks were stopped" in run.text


def test_ranks_end_with_a_killed_launcher(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(IMPORTS + WAITS)
    folders = tmp_path / "folders"
    folders.mkdir()

    def kill(process: subprocess.Popen[str]) -> None:
        wait_for_files(tmp_path, "at-*", 2)
        assert list(folders.iterdir())
        process.kill()

    run = run_ranks(
        tmp_path,
        2,
        "--dtdispatch-timeout=600",  # far longer than the run takes
        launcher=by_pytest,
        meanwhile=kill,
        variables={"TMPDIR": str(folders)},
    )
    assert run.status == -signal.SIGKILL
    assert not list(folders.iterdir())


# The store that ranks connect to


@pytest.mark.parametrize(
    ("rank", "is_open", "message"),
    [
        pytest.param(
            *(0, True, "rank 0 cannot open a store: the port of 127.0.0.1:{port} is in use"),
            marks=pytest.mark.sweep,
        ),
        (1, False, "rank 1 finds no store at 127.0.0.1:{port} within 2 s"),
    ],
)
def test_unreachable_store_is_named(tmp_path: Path, rank: int, is_open: bool, message: str) -> None:
    (tmp_path / "test_good.py").write_text(IMPORTS + GOOD)
    command = (sys.executable, "-m", "pytest", "-q", "--dtdispatch", "--dtdispatch-timeout=2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_open:
            server.close()
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        run = finish(command, tmp_path, variables={**variables, "MASTER_PORT": str(port)})
    assert run.status == 1
    assert f"ERROR: {message.format(port=port)}" in run.text
    assert "Traceback" not in run.text


WAITS_FOR_THE_END = """
def test_bad(dtdispatch, device_mesh):
    open(f"at-{RANK}", "w").close()
    while not os.path.exists("gone"):
        time.sleep(0.1)
"""


@pytest.mark.sweep
def test_lost_store_ends_every_rank(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(f"{IMPORTS}\n{GOOD}\n{WAITS_FOR_THE_END}")
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]  # type: ignore[attr-defined]
    variables = {"MASTER_PORT": str(stores[0].port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def remove_store(process: subprocess.Popen[str]) -> None:
        wait_for_files(tmp_path, "at-*", 2)
        stores.clear()
        (tmp_path / "gone").touch()

    run = run_ranks(tmp_path, 2, meanwhile=remove_store, variables=variables)
    assert run.status == 1, run.text
    assert "failed: the store by which ranks exchange results is unreachable: " in run.text
    assert "1 failed, 1 passed" in run.text or "1 passed, 1 error" in run.text


@pytest.mark.parametrize(
    ("hook", "status"),
    [("pytest_sessionfinish", 0), pytest.param("pytest_unconfigure", 1, marks=pytest.mark.sweep)],
)
def test_rank_that_dies_after_its_last_test_is_reported(tmp_path: Path, hook: str, status: int) -> None:
    dies = f"def {hook}(): os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)"
    slow = "def pytest_terminal_summary(): time.sleep(1)"
    (tmp_path / "conftest.py").write_text(f"import os, time\n{dies}\n{slow}")
    (tmp_path / "test_it.py").write_text(f"{IMPORTS}{GOOD}\ndef test_last(): assert {1 - status}")
    run = run_ranks(tmp_path, 2, "--dtdispatch-export=csv:rows.csv", launcher=by_pytest)
    assert run.status == status
    assert "dtdispatch: rank 1 was killed by SIGKILL after its last test; its results count" in run.text
    assert (tmp_path / "rows.csv").exists()
