"""Launch ranks on this machine with torch's elastic launcher, and report failures."""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest import mock

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pytest_dtdispatch.errors import RanksError

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torch's launcher


def launch(
    ranks: int, command: Sequence[str], variables: Mapping[str, str], folder: str
) -> tuple[int, str] | None:
    """Run a command once per rank and wait for all; if one fails, terminate the others.

    Returns:
        The rank that failed first and how it ended; None if all succeeded.

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
            terminated = -signal.SIGTERM  # the launcher sends it to the other ranks
            failures = error.failures.items()
            rank, failure = min(failures, key=lambda item: (item[1].exitcode == terminated, item[0]))
            if failure.exitcode < 0:
                return rank, f"was killed by {failure.signal_name()}"
            return rank, f"ended with exit status {failure.exitcode}"
        except SignalException as error:
            raise RanksError(f"{error.sigval.name}: the {ranks} ranks were stopped") from None
    return None


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
