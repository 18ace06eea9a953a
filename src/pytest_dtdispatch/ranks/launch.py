"""Start ranks on this machine with torch's own elastic launcher, and say how they ended."""

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

LOOK_EVERY_S = 0.1
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by the launcher


class RankEnd(NamedTuple):
    """Which rank did not end well, and how it ended."""

    rank: int
    how: str


class StoppedError(Exception):
    """The signal of this name told the launcher to stop; the ranks were told too, and are gone."""


def launch(ranks: int, command: Sequence[str], variables: Mapping[str, str], folder: str) -> RankEnd | None:
    """Run a command once for each rank, and wait for all; when one fails, say how, and end the others."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port, for a store that this process keeps
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=LOOK_EVERY_S,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    told = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    with mock.patch.dict(os.environ, told), _silent_and_without_traces():
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            ended = [(rank, failure.exitcode) for rank, failure in sorted(error.failures.items())]
            rank, status = min(ended, key=lambda one: one[1] == -signal.SIGTERM)  # which the launcher sends
            return RankEnd(rank, _how(status))
        except SignalException as error:
            raise StoppedError(error.sigval.name) from None
    return None


def _how(status: int) -> str:
    """Say how a process ended, by its exit status; of one that a signal ended its number, below 0."""
    if status >= 0:
        return f"ended with exit status {status}"
    names = {int(number): number.name for number in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"


@contextmanager
def _silent_and_without_traces() -> Iterator[None]:
    """Keep the launcher from saying in its own words what we say, and take its signal handlers away after."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        for number, handler in handlers.items():
            signal.signal(number, handler)
