"""Environment of a run: machine, torch build, and the rank of this process."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.text import MAX_SHOWN, escape_controls, plural
from pytest_dtdispatch.errors import UnsupportedTorchError

RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def environment_summary(environment: Mapping[str, Any]) -> str:
    """Return one line with the properties that differ most often between two runs on one machine.

    Args:
        environment: properties by name, as :func:`pytest_dtdispatch.meshes.spec.run_environment` returns.

    Example:
        >>> cpu = {"device": "cpu", "device_name": "", "driver": "", "nccl": ""}
        >>> caches = {"cache_interface": "native+python", "threads": 2}
        >>> environment_summary({"torch_version": "2.13.0+cpu", **cpu, **caches})
        'torch 2.13.0+cpu, cpu, native+python caches, 2 threads'
    """
    titles = {"device_name": "", "driver": "driver ", "nccl": "NCCL "}
    details = [f"{title}{environment[name]}" for name, title in titles.items() if environment[name]]
    device = f"{environment['device']} ({', '.join(details)})" if details else environment["device"]
    caches, threads = f"{environment['cache_interface']} caches", plural(environment["threads"], "thread")
    ranks = f", {environment['fake_ranks']} ranks" if environment.get("fake_ranks") else ""
    return f"torch {environment['torch_version']}, {device}, {caches}, {threads}{ranks}"


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Temporarily set these environment variables; changes of others persist."""
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def software(environ: Mapping[str, str]) -> dict[str, str]:
    """Return properties other than torch that may explain a change, the most probable first."""
    files = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    governors = sorted({file.read_text().strip() for file in files if os.access(file, os.R_OK)})
    loaded = ((name, sys.modules.get(name)) for name in ("numpy", "pytest"))
    versions = {name: str(getattr(module, "__version__", "")) for name, module in loaded}
    return {"governor": ", ".join(governors), **speed_variables(environ), **versions}


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that torch, its libraries or Python read; of paths and secrets only "set".

    Example:
        >>> speed_variables({"OMP_NUM_THREADS": "2", "TORCH_HOME": "/home/me", "HF_TOKEN": "abc"})
        {'OMP_NUM_THREADS': '2', 'TORCH_HOME': 'set'}
    """
    prefixes = (
        *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_"),
        *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_"),
        *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "GLOO_", "MALLOC_", "LD_PRELOAD"),
        *("PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONOPTIMIZE", "PYTHON_GIL", "PYTHON_JIT"),
    )
    found = {}
    for name in sorted(name for name in environ if name.startswith(prefixes)):
        is_secret = re.search("TOKEN|SECRET|KEY|PASS|CREDENTIAL|AUTH", name)
        # No path, and no long token.
        is_plain = re.fullmatch(r"(?=.{1,40}$)\w{1,20}([.,:;=+-]+\w{0,20})*", environ[name], re.ASCII)
        found[name] = environ[name] if is_plain and not is_secret else "set"
    return found


def slowing_settings(environ: Mapping[str, str], threads: int, checks_anomalies: bool) -> dict[str, str]:
    """Return settings of this process that can make calls longer, with their values; those in effect only.

    Args:
        environ: environment variables.
        threads: number of intra-op threads of torch.
        checks_anomalies: whether autograd's anomaly mode is on.

    Example:
        >>> slowing_settings({"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, 1, True)
        {'anomaly mode': 'on', 'TORCH_DISTRIBUTED_DEBUG': 'DETAIL'}
    """
    found = {"anomaly mode": "on"} if checks_anomalies else {}
    without_effect = {"TORCH_LOGS": "", "CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
    values = speed_variables(environ)
    for name, default in without_effect.items():
        if environ.get(name, "").upper() not in ("", default):
            found[name] = values[name]
    # The cores that this process may use; not known on macOS.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads > cores:
        found["intra-op threads"] = f"{threads:,} on {plural(cores, 'core')}"
    return found


def cpu_model() -> str:
    """Return the model name of the CPU, or else its architecture."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load_text() -> str:
    """Format the load average and the number of cores."""
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return f"load unknown on {cores} cores"
    return f"load {load:.1f} on {plural(cores, 'core')}"


def tracers() -> tuple[str, ...]:
    """Return the names of tools that slow this thread: debuggers, coverage, profilers, tracers of memory."""
    import _tracemalloc  # noqa: F401 (built in; PYTHONTRACEMALLOC starts it without importing it)

    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and later
    tools = filter(monitoring.get_tool, range(6)) if monitoring else ()
    found = [_tool_of(hook) for hook in (sys.gettrace(), sys.getprofile()) if hook]
    found += [monitoring.get_tool(tool) for tool in tools if monitoring.get_events(tool)]
    # Modules in C of tools that no hook of Python shows, and the functions that report that they run.
    for name, function in (("_tracemalloc", "is_tracing"), ("_yappi", "is_running")):
        is_active = getattr(sys.modules.get(name), function, None)
        if is_active is not None and is_active():
            found.append(name.lstrip("_"))
    # The only sign of memray, which traces by a function in C, is its function for new threads.
    if _tool_of(threading.getprofile()) == "memray":
        found.append("memray")
    return tuple(dict.fromkeys(found))


def _tool_of(hook: object) -> str:
    """Return the package or module of a trace or profile function, or of the class that it belongs to."""
    owner: Any = getattr(hook, "__self__", hook)
    modules = [getattr(owner, "__module__", None), *(each.__module__ for each in type(owner).__mro__)]
    names = [str(module).partition(".")[0] for module in modules if module]
    # With python -m, a tool is __main__, and only its base class has a name.
    name = next((each for each in names if each not in ("__main__", "builtins")), names[0])
    return {"_lsprof": "cProfile", "bdb": "pdb"}.get(name, name)


def require_torch() -> None:
    """Raise if torch is not installed, without importing it.

    Raises:
        UnsupportedTorchError: torch is not installed.
    """
    try:
        is_installed = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:  # raised by an import hook that blocks torch
        is_installed = False
    if not is_installed:
        needs = "a mesh and what is measured on it need torch 2.5 or later"
        raise UnsupportedTorchError(f"torch is not installed: {needs}")


@dataclass(frozen=True)
class World:
    """Rank of this process and size of the run.

    Args:
        rank: rank of this process.
        size: number of ranks in the run.
        local_rank: rank of this process on its machine.
        local_size: number of ranks on its machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_many(self) -> bool:
        """Whether the run has other ranks."""
        return self.size > 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints, writes and judges."""
        return self.rank == 0


def read_world(environ: Mapping[str, str]) -> World:
    """Read the variables that torchrun or another launcher sets; return a world of one rank without them."""
    rank, size = _number(environ, "RANK", -1), _number(environ, "WORLD_SIZE", -1)
    if not 0 <= rank < size or not all(environ.get(name) for name in RENDEZVOUS_VARIABLES):
        return World()
    return World(rank, size, _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", size))


def why_no_world(environ: Mapping[str, str]) -> str:
    """Return why the environment names one of many ranks but is invalid; empty if it is valid.

    Example:
        >>> why_no_world({"RANK": "0", "WORLD_SIZE": "1"}), why_no_world({})
        ('', '')
    """
    named = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if environ.get(name)}
    if read_world(environ).is_many or named.items() <= {"RANK": "0", "WORLD_SIZE": "1"}.items():
        return ""
    variables = " and ".join(f"{name}={escape_controls(text)[:MAX_SHOWN]}" for name, text in named.items())
    needed = ("RANK", "WORLD_SIZE", *RENDEZVOUS_VARIABLES)
    missing = "".join(f", and no {name}" for name in needed if not environ.get(name))
    return (
        f"{variables} in the environment{missing}: start ranks by torchrun, which sets RANK from 0 up to "
        "WORLD_SIZE - 1, or unset both to measure as one"
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ranks for a sentence.

    Example:
        >>> ranks_text([2]), ranks_text([0, 1, 3])
        ('rank 2', 'ranks 0, 1, 3')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def ranks_range(ranks: Sequence[int]) -> str:
    """Format the ranks of a group; the middle of a long list is omitted.

    Example:
        >>> ranks_range([0, 1, 2, 3]), ranks_range([0, 4]), ranks_range(range(0, 256, 16))
        ('0-3', '0,4', '0,16,32,...,240 (16 ranks)')
    """
    if len(ranks) > 2 and [*ranks] == [*range(ranks[0], ranks[0] + len(ranks))]:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) > 8:
        return f"{','.join(map(str, ranks[:3]))},...,{ranks[-1]} ({len(ranks)} ranks)"
    return ",".join(map(str, ranks))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
