"""What a launcher says of this process."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.world import World, read_world

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_torchrun_says_all() -> None:
    world = read_world(TORCHRUN)
    assert world == World(3, 4, 1, 2)
    assert world.is_many
    assert not world.is_first


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize("value", [None, ""])
def test_what_is_incomplete_is_one_rank(name: str, value: str | None) -> None:
    environ = {key: text for key, text in TORCHRUN.items() if key != name or value is not None}
    assert read_world({**environ, **({name: ""} if value == "" else {})}) == World()


@pytest.mark.parametrize("rank", ["4", "-1", "one", "1.0", "²"])
def test_a_rank_that_cannot_be_is_one_rank(rank: str) -> None:
    assert read_world({**TORCHRUN, "RANK": rank}) == World()
