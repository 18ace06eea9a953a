"""Communication between ranks: JSON through the store of their launcher, with a timeout on every wait."""

from __future__ import annotations

import json
import os
import secrets
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, PrefixStore, rendezvous  # type: ignore[attr-defined]

from pytest_dtdispatch.core.environment import World, ranks_text
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.errors import RanksError, first_message

__tracebackhide__ = True  # a test that fails here shows its own line

PREFIX = "dtdispatch"  # the process group's own keys are elsewhere
JOIN = f"{PREFIX}-join"  # key of each rank's question for the prefix of the attempt
LONGEST_PAUSE_S = 0.02  # between two readings of the store


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        message = f"the store by which ranks exchange results is unreachable: {first_message(error)[:200]}"
        raise RanksError(message) from None


class Exchange:
    """A store in which every rank writes values and reads those of all ranks, by key."""

    LEFT = "left"  # key of a rank's exit status: it does not participate after that

    def __init__(self, store: Any, world: World, timeout_s: float) -> None:
        self.world = world
        self.timeout_s = timeout_s
        self.lost: dict[int, str] = {}  # the reason by rank, for ranks not waited for
        self.end_of_part = ""  # key of each rank's outcome of the current phase; empty outside tests
        self._root = store
        self._store = PrefixStore(PREFIX, store)

    @_store_errors()
    def put(self, key: str, value: Any) -> None:
        """Write this rank's value under a key, once per key."""
        data = zlib.compress(json.dumps(value).encode())  # torch rejects values of 8 MiB
        self._store.set(f"{key}/{self.world.rank}", data)  # type: ignore[arg-type]  # it also accepts bytes

    def meet(self, key: str, value: Any, action: str) -> dict[int, Any]:
        """Write a value during a test, and gather the values of all ranks."""
        self.put(key, value)
        return self.gather(key, action, unless=(self.end_of_part, self.LEFT))

    @_store_errors()
    def gather(
        self,
        key: str,
        action: str,
        timeout_s: float | None = None,
        among: Collection[int] | None = None,
        unless: Collection[str] = (LEFT,),
    ) -> dict[int, Any]:
        """Wait until ranks have written a value under a key, and return the values by rank.

        A rank that has written under one of the ``unless`` keys instead will not write this key.

        Raises:
            RanksError: a rank left or timed out; ``action`` completes the message "rank 1 did not ...".
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        waiting = {*(range(self.world.size) if among is None else among)} - self.lost.keys()
        found: dict[int, Any] = {}
        pause_s = 0.0005
        # Torch's own wait warns at each timeout, and cannot detect that a rank has left.
        while waiting := waiting - self.lost.keys():  # a signal may end the wait
            gone = {rank for rank in waiting if any(self._has(other, rank) for other in unless)}
            found |= {rank: self._read(key, rank) for rank in waiting if self._has(key, rank)}
            waiting -= found.keys()
            early = sorted(gone & waiting)
            if early:
                raise RanksError(f"{ranks_text(early)} ended early and did not {action}")
            if waiting and time.monotonic() > deadline:
                late = f"{ranks_text(sorted(waiting))} did not {action} within {self.timeout_s:g} s"
                self.lost |= dict.fromkeys(waiting, late)
                raise RanksError(late)
            time.sleep(pause_s if waiting else 0)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return dict(sorted(found.items()))

    @_store_errors()
    def written(self, key: str, ranks: Collection[int]) -> dict[int, Any]:
        """Return the values that these ranks have written under a key, without waiting."""
        return {rank: self._read(key, rank) for rank in ranks if self._has(key, rank)}

    def group_store(self, name: str) -> Any:
        """Return a store for one process group, separate from those of all other groups."""
        return PrefixStore(f"{PREFIX}-group/{name}", self._root)

    def _has(self, key: str, rank: int) -> bool:
        return bool(self._store.check([f"{key}/{rank}"]))

    def _read(self, key: str, rank: int) -> Any:
        return json.loads(zlib.decompress(self._store.get(f"{key}/{rank}")))


class Lockstep:
    """Synchronization of ranks in one test; a no-op without a real process group."""

    def __init__(self, exchange: Exchange, test: str, has_real_group: Callable[[], bool]) -> None:
        self._exchange = exchange
        self._test = test
        self._has_real_group = has_real_group
        self._subject = ""
        self._count = 0
        self.trail = Trail()

    def note(self, trail: Trail) -> None:
        """Add collectives and ops of this rank; a no-op without a real process group."""
        if self._has_real_group():
            self.trail += trail

    def sync(self, subject: str) -> None:
        """Wait for the other ranks at the start of a subject."""
        self._subject = subject
        if self._has_real_group():
            self._settle(f"the start of {subject}", ())

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """Return the minimum of each number over all ranks; None without a real process group.

        Raises:
            RanksError: ranks are at different steps or pass different numbers of values, or a rank has left
                the test.
        """
        if not self._has_real_group():
            return None
        found = self._settle(f"{step} of {self._subject}", numbers)
        return tuple(map(min, zip(*found, strict=True)))

    def difference(self, step: str) -> str:
        """Return how ranks are at different steps; empty if all are at this one."""
        if not self._has_real_group():
            return ""
        found = self._meet(step, step)
        who = grouped((theirs, rank) for rank, theirs in found.items())
        return "; ".join(f"{ranks_text(ranks)} at {theirs}" for theirs, ranks in who.items() if len(who) > 1)

    def _settle(self, where: str, numbers: Sequence[int]) -> list[Sequence[int]]:
        found = self._meet([where, numbers], self._subject)
        who = grouped(((theirs, len(proposed)), rank) for rank, (theirs, proposed) in found.items())
        if len(who) > 1:
            each = "; ".join(f"{ranks_text(ranks)} at {theirs}" for (theirs, _), ranks in who.items())
            raise RanksError(f"ranks measure different things: {each}")
        return [proposed for _, proposed in found.values()]

    def _meet(self, value: Any, goal: str) -> dict[int, Any]:
        key = f"agree/{self._test}/{self._count}"
        self._count += 1
        return self._exchange.meet(key, value, f"come to {goal}")


def join(world: World, timeout_s: float) -> Exchange:
    """Open the store that the launcher set in the environment, or a local one for a single rank."""
    if not world.is_many:
        return Exchange(HashStore(), world, timeout_s)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        message = f"finds no store at {where} within {timeout_s:g} s: {first_message(error)[:200]}"
        if "EADDRINUSE" in str(error):
            message = f"cannot open a store: the port of {where} is in use"
        raise RanksError(f"rank {world.rank} {message}") from None
    return Exchange(attempt_store(store, world, timeout_s), world, timeout_s)


@_store_errors()
def attempt_store(store: Any, world: World, timeout_s: float) -> Any:
    """Return a part of a store that only the live ranks of a run share.

    When torchrun restarts ranks, they have the store of the failed attempt, with its results. No variable
    numbers attempts: an agent counts failures of its own ranks only, and no restarts by new agents. Therefore
    the first rank creates a prefix, and answers each rank under a key which that rank created.

    Raises:
        RanksError: a rank did not join in time.
    """
    own = f"{PREFIX}-{secrets.token_hex(8)}"
    if not world.is_first:
        store.set(f"{JOIN}/{world.rank}", own)
    deadline = time.monotonic() + timeout_s
    while missing := _not_joined(store, world, own):
        if time.monotonic() > deadline:
            raise RanksError(f"{ranks_text(missing)} did not join the run within {timeout_s:g} s")
        time.sleep(LONGEST_PAUSE_S)
    if not world.is_first:
        own = store.get(own).decode()
        store.set(f"{own}/{world.rank}", "")
    return PrefixStore(own, store)


def _not_joined(store: Any, world: World, own: str) -> list[int]:
    """Return the first rank if it has not answered; on the first rank, answer others, and return the rest."""
    if not world.is_first:
        return [] if store.check([own]) else [0]
    others = range(1, world.size)
    for rank in others:
        if store.check([f"{JOIN}/{rank}"]):  # may be of an earlier attempt, which does not read the answer
            store.set(store.get(f"{JOIN}/{rank}").decode(), own)
    return [rank for rank in others if not store.check([f"{own}/{rank}"])]
