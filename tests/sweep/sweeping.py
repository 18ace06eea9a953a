"""Run and compare cases, and summarize the results."""

from __future__ import annotations

import fnmatch
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import DeviceMesh

from tests.sweep.cases import Case, cases, ops, sample_of
from tests.sweep.compare import Compared, compare

SLICES = 32
ENOUGH = 400  # cases between two full collections: others do not reach frozen objects


@contextmanager
def quiet() -> Iterator[None]:
    """Isolate cases from other sources of tensors and collections, and show repeated warnings.

    Torch logs every shape function that raises, and seeds random ops separately.
    """
    ops()  # loads the modules that seed
    seeding = [module for module in list(sys.modules.values()) if hasattr(module, "wrapper_set_seed")]
    threads, always = torch.get_num_threads(), torch.is_warn_always_enabled()
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    logging.disable()
    gc.disable()
    try:
        with ExitStack() as stack:
            for module in seeding:
                stack.enter_context(patch.object(module, "wrapper_set_seed", unseeded))
            yield
    finally:
        gc.unfreeze()
        gc.enable()
        logging.disable(logging.NOTSET)
        torch.set_warn_always(always)
        torch.set_num_threads(threads)


def unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a random op without torch's seed, like a program."""
    return op(*args, **kwargs)


def sweep(chosen: Iterator[Case], mesh: DeviceMesh) -> Compared:
    """Compare cases; cases without a sample are skipped."""
    compared = Compared()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of creating samples and outputs; a case records its own
        for n, case in enumerate(chosen):
            sample = sample_of(case)
            if sample is not None:
                compare(case, sample, mesh, compared)
            if n % ENOUGH == ENOUGH - 1:
                gc.unfreeze()
                gc.collect()
    return compared


def sampled(every: int) -> Iterator[Case]:
    """Yield every n-th case, the same in every run."""
    return (case for case in cases() if case.number % every == 0)


def sliced(number: int) -> Iterator[Case]:
    """Yield the cases of every n-th op that match the glob ``SWEEP_CASES``."""
    names = set(list(ops())[number::SLICES])
    glob = os.environ.get("SWEEP_CASES", "*")
    return (case for case in cases() if case.op in names and fnmatch.fnmatchcase(case.name, glob))


def slices() -> range:
    """Return the slices of this process: ``SWEEP_SHARD=1/2`` selects half of them."""
    shard, _, shards = os.environ.get("SWEEP_SHARD", "1/1").partition("/")
    return range(int(shard) - 1, SLICES, int(shards or 1))


def described(compared: Compared) -> list[str]:
    """Render the differences, one per line."""
    return [
        f"{one.way}: {one.kind}: {one.case.name}: {_shortened(one.plain)} became {_shortened(one.measured)}"
        for one in compared.differences
    ]


def summary(compared: Compared) -> str:
    """Render the numbers of compared cases, omitted observations and differing runs."""
    different = {(one.way, one.case.name) for one in compared.differences}
    without = ", ".join(f"{name} {count}" for name, count in sorted(compared.without.items()))
    return (
        f"{compared.cases} measured runs over torch's op database, {len(different)} differ; "
        f"not compared, because plain runs differ: {without}"
    )


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 400 else text[:400] + "..."
