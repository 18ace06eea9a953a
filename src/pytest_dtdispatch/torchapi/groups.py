"""Process groups, simulated ranks, and RPC."""

from __future__ import annotations

import importlib
import secrets
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pytest_dtdispatch.core.measurement import SIMULATED
from pytest_dtdispatch.torchapi.observe import around
from pytest_dtdispatch.torchapi.ops import TorchDispatchMode, open_modes
from pytest_dtdispatch.torchapi.tensors import group_backend


def init_group(backend: str, **how: Any) -> None:
    """Start a process group, and restore ``sys.excepthook``.

    Each group wraps it to print a prefix such as ``[rank0]:``, but does not unwrap it when it is destroyed:
    after 1,200 groups, a traceback raised RecursionError.
    """
    hook = sys.excepthook
    try:
        torch.distributed.init_process_group(backend, **how)
    finally:
        sys.excepthook = hook


def init_fake_group(world_size: int) -> None:
    """Start a fake process group of any size in this process, with uniform ranks where torch has them."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    options = _options_of_uniform_ranks()
    init_group("fake", store=fake.FakeStore(), rank=0, world_size=world_size, pg_options=options)


def has_uniform_ranks() -> bool:
    """Return whether collectives of a fake group return what they would if all ranks had the same data."""
    return _options_of_uniform_ranks() is not None


def _options_of_uniform_ranks() -> Any:
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    new_options: Any = getattr(fake.FakeProcessGroup, "Options", None)
    if not hasattr(new_options, "simulate_uniform_ranks"):
        return None
    options = new_options()
    options.simulate_uniform_ranks = True
    return options


@contextmanager
def debug_level_of_fake_groups() -> Iterator[None]:
    """Temporarily lower ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` to ``INFO``.

    With ``DETAIL``, torch opens a gloo group behind each group, for which a fake store has no addresses.
    """
    dist: Any = torch.distributed
    level = dist.get_debug_level()
    if level == dist.DebugLevel.DETAIL:
        dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        yield
    finally:
        dist.set_debug_level(level)


def is_first_of_group() -> bool | None:
    """Return whether this process is the first of the open process group; None if none is open.

    A process of a fake group is, whatever its rank, because its other ranks do not exist.
    """
    backend = group_backend()
    if not backend:
        return None
    return backend in SIMULATED or torch.distributed.get_rank() == 0


def rank_of_group() -> int | None:
    """Return the rank in the open process group, if collectives communicate with other ranks; else None."""
    dist = torch.distributed
    return dist.get_rank() if has_real_group() and dist.get_world_size() > 1 else None


def forget_group_that_failed() -> None:
    """Reset the number of the next group after a failed start, so that its name is equal on all ranks."""
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    if not torch.distributed.is_initialized() and hasattr(world, "group_count"):
        setattr(world, "group_count", 0)  # noqa: B010 (not in torch's stubs)


def keep_backends_while_groups_end() -> None:
    """Keep backends of process groups alive until their groups are destroyed.

    Up to torch 2.7 the destructor of a gloo group holds the GIL and waits for its threads, which may need the
    GIL to free a tensor: a deadlock. A backend that Python releases later is destroyed without the GIL.
    """
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    for group in getattr(world, "pg_map", ()):
        if hasattr(group, "_get_backend"):
            backends = [group._get_backend(device) for device in getattr(group, "_device_types", ())]
            weakref.finalize(group, backends.clear).atexit = False


def has_real_group() -> bool:
    """Return whether collectives of this process communicate with other ranks."""
    return group_backend() not in ("", *SIMULATED)


def collectives_write() -> bool:
    """Return whether all collectives of the open group write their output; older fake groups do not."""
    dist = torch.distributed
    ranks = dist.get_world_size()
    written = torch.full((ranks,), 7.0)
    dist.all_to_all_single(written, torch.ones(ranks))
    return bool((written == 1).all())


def print_stacks_on_fatal_signals() -> None:
    """Print C++ stacks to standard error if a signal such as SIGABRT or SIGSEGV kills this process.

    Torch installs handlers for SIGUSR2, to inspect other threads, and for SIGINT; the latter is restored.
    """
    enable = getattr(torch._C, "_set_print_stack_traces_on_fatal_signal", None)
    if enable is None or sys.platform != "linux":
        return
    interrupt = signal.getsignal(signal.SIGINT)
    enable(True)
    signal.signal(signal.SIGINT, interrupt)


def start_rpc(rank: int, world_size: int, store: Any, timeout_s: float) -> None:
    """Start RPC between ranks that share an open store.

    A ``tcp://`` rendezvous would hang under torchrun: a variable for torchrun's own store makes every rank a
    client.
    """
    rpc, scheme = importlib.import_module("torch.distributed.rpc"), f"dtdispatch-{secrets.token_hex(8)}"

    def meet(url: str, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        del url, kwargs
        yield store, rank, world_size

    dist: Any = torch.distributed
    dist.register_rendezvous_handler(scheme, meet)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"{scheme}://", rpc_timeout=timeout_s, _transports=["uv"]
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # caused by torch itself
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    handlers = getattr(importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    handlers.pop(scheme, None)  # it keeps the store alive


def stop_rpc(graceful: bool, timeout_s: float) -> None:
    """Stop RPC; if ``graceful``, wait until all ranks stop it."""
    importlib.import_module("torch.distributed.rpc").shutdown(graceful=graceful, timeout=timeout_s)


def innermost_in_local_mode(mode: TorchDispatchMode) -> AbstractContextManager[None]:
    """Keep a mode innermost when a program opens a simulation of all ranks, which would hide DTensors.

    If the mode is innermost at the start or the end of a simulation, it is closed and opened again.
    """

    def moved(inner: Callable[..., Any], local_mode: Any, *args: Any) -> Any:
        if open_modes()[-1:] != [mode]:
            return inner(local_mode, *args)
        TorchDispatchMode.__exit__(mode, None, None, None)
        try:
            return inner(local_mode, *args)
        finally:
            TorchDispatchMode.__enter__(mode)

    return around({"simulation": moved})
