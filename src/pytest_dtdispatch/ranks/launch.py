"""Launch ranks on this machine with torch's elastic launcher, and report failures."""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pytest_dtdispatch.errors import RanksError


class RankEnd(NamedTuple):
    """How a rank failed: its exit status, or a signal as a negative number."""

    rank: int
    status: int

    @property
    def is_terminated(self) -> bool:
        """Whether it was killed by the signal that the launcher sends to the other ranks."""
        return self.status == -signal.SIGTERM

    def __str__(self) -> str:
        if self.status >= 0:
            return f"rank {self.rank} ended with exit status {self.status}"
        return f"rank {self.rank} was killed by {signal.Signals(-self.status).name}"


HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torch's launcher


def launch(ranks: int, command: Sequence[str], variables: Mapping[str, str], folder: str) -> list[RankEnd]:
    """Run a command once per rank and wait for all; if one fails, terminate the others.

    Returns:
        How ranks failed, those that the launcher terminated last; empty if all succeeded.

    Raises:
        RanksError: this process received a termination signal, and has stopped the ranks.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port, for a store in this process
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    with mock.patch.dict(os.environ, environment), _silent_launcher():
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            ends = (RankEnd(rank, failure.exitcode) for rank, failure in error.failures.items())
            return sorted(ends, key=lambda end: (end.is_terminated, end.rank))
        except SignalException as error:
            raise RanksError(f"{error.sigval.name}: the {ranks} ranks were stopped") from None
    return []


@contextmanager
def _silent_launcher() -> Iterator[None]:
    """Temporarily disable logging, as failures are reported here; restore signal handlers afterwards."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        for number, handler in handlers.items():
            signal.signal(number, handler)
