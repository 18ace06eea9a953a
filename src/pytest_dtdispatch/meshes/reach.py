"""How the ranks of a real process group find each other."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import HashStore  # type: ignore[attr-defined]

from pytest_dtdispatch.core.world import World
from pytest_dtdispatch.errors import MeshError, RanksError
from pytest_dtdispatch.ranks.exchange import Exchange


@dataclass(frozen=True)
class Reach:
    """This process among the ranks of its run, for one test.

    Args:
        world: which rank it is.
        timeout_s: seconds that each wait for others may take, collectives included.
        exchange: by which ranks tell each other; none where there is one rank.
        test: names the test, the same on every rank and another for each run of it.
    """

    world: World = field(default_factory=World)
    timeout_s: float = 60.0
    exchange: Exchange | None = None
    test: str = ""

    def store(self, name: str) -> Any:
        """Return a store that no other process group has written to."""
        return self.exchange.group_store(f"{self.test}/{name}") if self.exchange else HashStore()

    def meet_to_open(self, name: str) -> None:
        """Wait for the other ranks before a process group is opened."""
        if self.exchange is not None:
            self.exchange.meet(f"open/{self.test}/{name}", None, "open a process group")

    def meet_to_close(self, name: str) -> bool:
        """Wait for the other ranks before a process group is closed; say whether all of them came."""
        if self.exchange is None:
            return True
        try:
            self.exchange.meet(f"close/{self.test}/{name}", None, "close its process group")
        except RanksError:  # who waits for that rank from now on is told, and fails the test
            return False
        return not self.exchange.lost

    def shared_file(self, name: str) -> Path:
        """Name a file that is not there yet, the same on every rank."""
        folder = Path(tempfile.gettempdir())
        own = folder / f"dtdispatch-rpc-{os.getpid()}-{self.test}-{name}"
        if self.exchange is None:
            return own
        key = f"file/{self.test}/{name}"
        try:
            found = self.exchange.meet(key, [socket.gethostname(), str(own)], "start RPC")
        except RanksError as error:
            raise MeshError(str(error)) from None
        if len({host for host, _ in found.values()}) > 1:
            raise MeshError("RPC needs all ranks on one machine: they meet at a file there")
        return Path(found[0][1])
