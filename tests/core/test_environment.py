"""Environment of a run: settings, load of the machine, and the rank of a process."""

from __future__ import annotations

import bdb
import cProfile
import os
import sys
import threading
import tracemalloc
import types
from typing import Any

import pytest

from pytest_dtdispatch.core.environment import (
    World,
    _tool_of,
    load_text,
    read_world,
    slowing_settings,
    speed_variables,
    tracers,
    why_no_world,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
IN_IT = "in the environment"


@pytest.mark.parametrize(
    ("load", "cores", "text"),
    [
        (0.31, 4, "load 0.3 on 4 cores"),
        (3.9, 4, "load 3.9 on 4 cores"),
        (0.5, 1, "load 0.5 on 1 core"),
        (None, 4, "load unknown on 4 cores"),
    ],
)
def test_load_is_reported_without_a_judgement(
    monkeypatch: pytest.MonkeyPatch, load: float | None, cores: int, text: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delattr(os, "getloadavg")
    if load is not None:
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0), raising=False)
    assert load_text() == text


@pytest.mark.parametrize(
    ("changes", "world", "reason"),
    [
        ({}, World(3, 4, 1, 2), ""),
        ({"LOCAL_RANK": None, "LOCAL_WORLD_SIZE": "x"}, World(3, 4, 3, 4), ""),
        (dict.fromkeys(TORCHRUN), World(), ""),
        ({**dict.fromkeys(TORCHRUN), "RANK": "0"}, World(), ""),
        ({**dict.fromkeys(TORCHRUN), "RANK": "0", "WORLD_SIZE": "1"}, World(), ""),
        ({"MASTER_ADDR": ""}, World(), f"RANK=3 and WORLD_SIZE=4 {IN_IT}, and no MASTER_ADDR: "),
        ({"MASTER_PORT": None}, World(), f"RANK=3 and WORLD_SIZE=4 {IN_IT}, and no MASTER_PORT: "),
        ({"WORLD_SIZE": None}, World(), f"RANK=3 {IN_IT}, and no WORLD_SIZE: "),
        (
            {"RANK": "", "MASTER_ADDR": None},
            World(),
            f"WORLD_SIZE=4 {IN_IT}, and no RANK, and no MASTER_ADDR: ",
        ),
        *(
            ({"RANK": rank}, World(), f"RANK={rank} and WORLD_SIZE=4 {IN_IT}: start ranks by torchrun, ")
            for rank in ("4", "-1", "one", "1.0", "²")
        ),
        ({"WORLD_SIZE": "x\n" * 999}, World(), "RANK=3 and WORLD_SIZE=x\\nx\\n"),
    ],
)
def test_rank_of_a_launcher_is_read_or_rejected(
    changes: dict[str, str | None], world: World, reason: str
) -> None:
    environ = {name: text for name, text in {**TORCHRUN, **changes}.items() if text is not None}
    found = why_no_world(environ)
    assert read_world(environ) == world
    assert (world.is_many, world.is_first) == (world != World(), world == World())
    assert found.startswith(reason) if reason else found == ""
    assert found.isprintable()
    assert len(found) < 300


@pytest.mark.parametrize(
    ("environ", "threads", "checks_anomalies", "found"),
    [
        ({"OMP_NUM_THREADS": "4", "CUDA_LAUNCH_BLOCKING": "0"}, 4, False, {}),
        ({"TORCH_LOGS": "", "TORCH_DISTRIBUTED_DEBUG": "off"}, 1, False, {}),
        ({}, 8, True, {"anomaly mode": "on", "intra-op threads": "8 on 4 cores"}),
        ({"TORCH_LOGS": "+dynamo,/home/me"}, 1, False, {"TORCH_LOGS": "set"}),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, 1, False, {"CUDA_LAUNCH_BLOCKING": "1"}),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, 1, False, {"TORCH_DISTRIBUTED_DEBUG": "INFO"}),
    ],
)
def test_only_settings_in_effect_slow_calls(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    threads: int,
    checks_anomalies: bool,
    found: dict[str, str],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
    assert slowing_settings(environ, threads, checks_anomalies) == found


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_tracers_of_python_are_named(install: Any) -> None:
    assert not tracers()
    install(lambda *event: None)
    try:
        found = tracers()
    finally:
        install(None)
    assert found == (__name__.partition(".")[0],)


def test_tools_started_by_python_m_are_named() -> None:
    class Profile(cProfile.Profile):
        __module__ = "__main__"

    class Debugger(bdb.Bdb):
        __module__ = "__main__"

    debugger = Debugger()
    assert [_tool_of(hook) for hook in (Profile(), debugger.trace_dispatch)] == ["cProfile", "pdb"]


def test_tracemalloc_is_named_while_it_runs() -> None:
    tracemalloc.start()
    try:
        assert tracers() == ("tracemalloc",)
    finally:
        tracemalloc.stop()
    assert not tracers()


def test_tools_without_hooks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [False]
    monkeypatch.setitem(sys.modules, "_yappi", types.SimpleNamespace(is_running=lambda: running[0]))
    assert not tracers()
    running[0] = True
    monkeypatch.setattr(threading, "_profile_hook", type("Hook", (), {"__module__": "memray._memray"})())
    assert tracers() == ("yappi", "memray")


def test_function_for_new_threads_slows_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "_profile_hook", lambda *event: None)
    assert not tracers()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="requires sys.monitoring of Python 3.12")
def test_tools_of_sys_monitoring_are_named() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    monitoring.use_tool_id(3, "a coverage tool")
    try:
        assert not tracers()
        monitoring.set_events(3, monitoring.events.LINE)
        assert tracers() == ("a coverage tool",)
    finally:
        monitoring.set_events(3, 0)
        monitoring.free_tool_id(3)
    assert not tracers()


def test_profiler_in_c_is_named() -> None:
    with cProfile.Profile():
        assert tracers() == ("cProfile",)


@pytest.mark.parametrize(
    ("name", "text", "saved"),
    [
        ("OMP_NUM_THREADS", "2", {"OMP_NUM_THREADS": "2"}),
        ("PYTORCH_ALLOC_CONF", "a_b:True,c:2", {"PYTORCH_ALLOC_CONF": "a_b:True,c:2"}),
        ("TORCH_HOME", "/home/someone", {"TORCH_HOME": "set"}),
        ("TORCH_HUB_TOKEN", "abc", {"TORCH_HUB_TOKEN": "set"}),
        ("NCCL_DEBUG", "x" * 41, {"NCCL_DEBUG": "set"}),
        ("HF_TOKEN", "abc", {}),
    ],
)
def test_variables_are_saved_without_paths_and_secrets(name: str, text: str, saved: dict[str, str]) -> None:
    assert speed_variables({name: text}) == saved
