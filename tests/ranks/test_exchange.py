"""Exchange of values between ranks by a store: complete, late, exited and diverging ranks.

Agreement on the subject and the minimum number of rounds; no agreement on fake groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from pytest_dtdispatch.core.environment import World
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.ranks.exchange import Exchange, Lockstep, attempt_store
from pytest_dtdispatch.rounds.plan import agreed
from pytest_dtdispatch.torchapi.groups import has_real_group

pytestmark = pytest.mark.torch

TIMEOUT_S = 0.3


@pytest.fixture
def ranks() -> list[Exchange]:
    """Return three ranks of one store."""
    store = HashStore()
    return [Exchange(store, World(rank, 3), TIMEOUT_S) for rank in range(3)]


def on_all(act: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
    """Run a function on each rank with its arguments; return the results or error messages."""

    def acted(*of_rank: Any) -> Any:
        try:
            return act(*of_rank)
        except RanksError as error:
            return str(error)

    with ThreadPoolExecutor(len(arguments[0])) as threads:
        return list(threads.map(acted, *arguments))


def test_every_rank_reads_values_of_all_ranks(ranks: list[Exchange]) -> None:
    def act(rank: Exchange) -> Any:
        rank.put("a", {"rank": rank.world.rank, "long": "ü" * 1_500_000})  # torch accepts up to 8 MiB
        return [(each, len(value["long"])) for each, value in rank.gather("a", "put", timeout_s=60).items()]

    assert on_all(act, ranks) == [[(rank, 1_500_000) for rank in range(3)]] * 3


def test_late_rank_is_named_and_awaited_once(ranks: list[Exchange]) -> None:
    for rank in ranks[:2]:
        rank.put("a", rank.world.rank)
    with pytest.raises(RanksError, match=rf"^rank 2 did not collect its tests within {TIMEOUT_S:g} s$"):
        ranks[0].gather("a", "collect its tests")
    start = time.monotonic()
    assert ranks[0].gather("a", "collect its tests") == {0: 0, 1: 1}
    assert time.monotonic() - start < TIMEOUT_S


def test_exited_rank_is_named_immediately(ranks: list[Exchange]) -> None:
    ranks[0].put("a", 0)
    ranks[2].put("a", 2)
    ranks[1].put(Exchange.LEFT, 3)
    ranks[2].put(Exchange.LEFT, 0)  # after it arrived, so it is not missing
    start = time.monotonic()
    with pytest.raises(RanksError, match=r"^rank 1 ended early and did not come$"):
        ranks[0].gather("a", "come", timeout_s=30)
    assert time.monotonic() - start < 10
    assert ranks[0].gather(Exchange.LEFT, "end", among=[1, 2], unless=()) == {1: 3, 2: 0}


def test_values_of_an_exited_rank_can_be_awaited(ranks: list[Exchange]) -> None:
    ranks[0].put(Exchange.LEFT, 0)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(ranks[1].gather, "done", "end the run", 10, [0], unless=())
        ranks[0].put("done", 0)
        assert done.result() == {0: 0}


def test_rank_past_its_test_phase_is_not_awaited(ranks: list[Exchange]) -> None:
    ranks[0].end_of_part = "test/1/call"
    ranks[1].put("test/1/call", "failed")
    ranks[2].put("agree", 2)
    ranks[2].put("test/1/call", "passed")
    with pytest.raises(RanksError, match=r"^rank 1 ended early and did not open a group$"):
        ranks[0].meet("agree", 0, "open a group")
    assert not ranks[0].lost


def test_groups_have_separate_keys(ranks: list[Exchange]) -> None:
    for name in ("1/1", "1/2"):
        ranks[0].group_store(name).set("key", name)
    assert [ranks[1].group_store(name).get("key") for name in ("1/1", "1/2")] == [b"1/1", b"1/2"]


def test_restarted_ranks_read_no_key_of_an_earlier_attempt() -> None:
    store, found = HashStore(), []
    for attempt in range(3):

        def act(rank: int, attempt: int = attempt) -> Any:
            exchange = Exchange(attempt_store(store, World(rank, 3), 30), World(rank, 3), 30)
            group = exchange.group_store("1/1")
            is_new = not group.check([f"address of {rank}"])
            group.set(f"address of {rank}", "")
            time.sleep(0.05 * rank)  # the first rank is early
            exchange.put("rows", [attempt, rank])
            return is_new, exchange.gather("rows", "send its rows")

        found += on_all(act, range(3))
    assert found == [(True, {rank: [n, rank] for rank in range(3)}) for n in range(3) for _ in range(3)]


def test_rank_that_does_not_join_is_named() -> None:
    store = HashStore()
    store.set("dtdispatch-join/2", "dtdispatch-of-a-dead-rank")
    worlds = [World(rank, 3) for rank in range(2)]
    assert on_all(lambda world: str(attempt_store(store, world, TIMEOUT_S)), worlds)[0] == (
        f"rank 2 did not join the run within {TIMEOUT_S:g} s"
    )
    assert on_all(lambda world: str(attempt_store(HashStore(), world, TIMEOUT_S)), worlds[1:]) == [
        f"rank 0 did not join the run within {TIMEOUT_S:g} s"
    ]


@pytest.fixture
def pair() -> list[Lockstep]:
    """Return two ranks with a real process group."""
    store = HashStore()
    return [Lockstep(Exchange(store, World(rank, 2), 0.3), "1", lambda: True) for rank in range(2)]


def test_ranks_agree_on_the_minimum_of_each_number(pair: list[Lockstep]) -> None:
    assert on_all(Lockstep.sync, pair, ("add", "add")) == [None, None]

    def proposed(rank: Lockstep, rounds: int, calls: int) -> tuple[int, ...]:
        return agreed(rank, "the rounds", rounds, calls)

    assert on_all(proposed, pair, (20, 7), (5, 20)) == [(7, 5), (7, 5)]
    assert agreed(None, "the rounds", 20, 5) == (20, 5)


def test_different_subjects_are_an_error_naming_both(pair: list[Lockstep]) -> None:
    message = "ranks measure different things: rank 0 at the start of add; rank 1 at the start of sub"
    assert on_all(Lockstep.sync, pair, ("add", "sub")) == [message, message]


def test_different_steps_are_an_error_that_names_both(pair: list[Lockstep]) -> None:
    on_all(Lockstep.sync, pair, ("add", "add"))
    for text in on_all(Lockstep.minimum, pair, ("the rounds", "the blocks"), [(5, 5)] * 2):
        assert "rank 0 at the rounds of add; rank 1 at the blocks of add" in str(text)


def test_different_counts_of_numbers_are_an_error(pair: list[Lockstep]) -> None:
    for text in on_all(Lockstep.minimum, pair, ("the rounds", "the rounds"), [(5, 5), (5,)]):
        assert "ranks measure different things" in str(text)


def test_nothing_is_agreed_on_without_a_real_group() -> None:
    lockstep = Lockstep(Exchange(HashStore(), World(0, 2), 0.3), "1", has_real_group)
    lockstep.sync("add")
    assert lockstep.minimum("the rounds", (20, 5)) is None
    assert agreed(lockstep, "the rounds", 20, 5) == (20, 5)
