"""The command that measures every op, and writes the page."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow
from pytest_dtdispatch.atlas.page import atlas_document
from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.report.markdown import document_text


def write_atlas(output: Path, ops: Sequence[str], command: str) -> Atlas:
    """Measure ops, and write the page."""
    checked_target(output)
    with _quiet_torch():
        atlas = _measure(ops, command)
    write_whole(output, document_text(atlas_document(atlas)))
    return atlas


def _measure(globs: Sequence[str], command: str) -> Atlas:
    from pytest_dtdispatch.atlas.survey import MAX_VISITS, PLAN, VISITS
    from pytest_dtdispatch.meshes.place import run_environment

    return Atlas(
        rows=_rows(globs),
        environment=run_environment((2, 4), "cpu", "fake"),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version(),
        date=datetime.date.today().isoformat(),
        command=command,
        visits=VISITS,
        max_visits=MAX_VISITS,
        rounds=PLAN.rounds,
        repeat=PLAN.repeat,
    )


def _rows(globs: Sequence[str]) -> tuple[AtlasRow, ...]:
    from pytest_dtdispatch.atlas.layouts import GRID
    from pytest_dtdispatch.atlas.survey import counted, surveyed_often
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.meshes.place import Place
    from pytest_dtdispatch.steps.counter import StepCounter
    from pytest_dtdispatch.torchapi.ops import ops_with_a_rule

    ops = {
        name: op
        for name, op in ops_with_a_rule().items()
        if not globs or any(fnmatchcase(name, glob) for glob in globs)
    }
    if not ops:
        raise DtDispatchError(f"--ops {' '.join(globs)}: no op that DTensor has a rule for has such a name")
    with StepCounter():
        pass  # where counts cannot be had, say so at once, and not when all is measured
    print(f"dtdispatch atlas: {len(ops):,} ops", file=sys.stderr)
    owner = ProcessGroupOwner()
    try:
        owner.group(Place(GRID, "cpu", "fake"))

        @functools.cache
        def mesh_of(shape: tuple[int, ...]) -> Any:
            return owner.mesh(Place(shape, "cpu", "fake"))

        return tuple(counted(surveyed_often(ops, mesh_of), mesh_of))
    finally:
        owner.close()


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """One thread; and no word of what torch logs and warns of while it refuses one op after the other."""
    import torch

    threads, level = torch.get_num_threads(), logging.root.manager.disable
    torch.set_num_threads(1)
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        logging.disable(level)
