"""What a launcher says of this process."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.environment import World, read_world, why_no_world

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


IN_IT = "in the environment"


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


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK=0 and WORLD_SIZE=2 in the environment, and no MASTER_ADDR"),
        ({"RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, f"RANK=1 {IN_IT}, and no WORLD_SIZE:"),
        ({"WORLD_SIZE": "4", "RANK": ""}, f"WORLD_SIZE=4 {IN_IT}, and no RANK and no MASTER_ADDR and"),
        ({**TORCHRUN, "RANK": "4"}, f"RANK=4 and WORLD_SIZE=4 {IN_IT}: RANK is a whole number from 0"),
        ({**TORCHRUN, "WORLD_SIZE": "x\n" * 999}, "RANK=3 and WORLD_SIZE=x\\nx\\n"),
    ],
)
def test_one_of_many_ranks_that_cannot_be_is_told(environ: dict[str, str], said: str) -> None:
    found = why_no_world(environ)
    assert found.startswith(said)
    assert found.isprintable()
    assert len(found) < 300


@pytest.mark.parametrize("environ", [{}, TORCHRUN, {"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_a_rank_of_many_and_one_alone_are_as_they_are_named(environ: dict[str, str]) -> None:
    assert why_no_world(environ) == ""


@pytest.mark.parametrize("rank", ["4", "-1", "one", "1.0", "²"])
def test_a_rank_that_cannot_be_is_one_rank(rank: str) -> None:
    assert read_world({**TORCHRUN, "RANK": rank}) == World()
