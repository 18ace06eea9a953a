"""What ranks agree on: the same subject, the least number of rounds; and nothing on fake groups."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from pytest_dtdispatch.core.world import World
from pytest_dtdispatch.errors import RanksError
from pytest_dtdispatch.ranks.agreement import Agreement
from pytest_dtdispatch.ranks.exchange import Exchange, LostRanksError

pytestmark = pytest.mark.torch


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agreement]]:
    """Two ranks where a real process group is open."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    store = HashStore()
    yield [Agreement(Exchange(store, World(rank, 2), 0.3), "1") for rank in range(2)]
    dist.destroy_process_group()


def said_by(pair: list[Agreement], *subjects: str) -> set[str]:
    def come(agreement: Agreement, subject: str) -> str:
        try:
            agreement.come_to(subject)
        except RanksError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        return set(threads.map(come, pair, subjects))


def test_ranks_take_the_least_that_any_of_them_proposes(pair: list[Agreement]) -> None:
    assert said_by(pair, "add", "add") == {""}
    with ThreadPoolExecutor(2) as threads:
        settled = list(threads.map(Agreement.rounds, pair, [(20, 5), (7, 20)], ("cached", "cached")))
    assert settled == [(7, 5), (7, 5)]


def test_different_subjects_are_one_error_on_every_rank_that_names_both(pair: list[Agreement]) -> None:
    says = "ranks measure different things: rank 0 at the start of add; rank 1 at the start of sub"
    assert said_by(pair, "add", "sub") == {says}


def test_different_uses_of_the_propagator_are_an_error(pair: list[Agreement]) -> None:
    said_by(pair, "add", "add")
    with ThreadPoolExecutor(2) as threads:
        both = [
            threads.submit(one.rounds, (5, 5), how) for one, how in zip(pair, ("cached", "none"), strict=True)
        ]
    for one in both:
        assert "rank 1 at the rounds of add (propagation: none)" in str(one.exception())


def test_a_rank_that_does_not_come_is_named(pair: list[Agreement]) -> None:
    with pytest.raises(LostRanksError, match=r"^rank 1 did not come to add within 0.3 s$"):
        pair[0].come_to("add")


def test_nothing_is_agreed_on_without_a_real_group() -> None:
    agreement = Agreement(Exchange(HashStore(), World(0, 2), 0.3), "1")
    agreement.come_to("add")
    assert agreement.rounds((20, 5), "cached") is None
