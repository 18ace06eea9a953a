"""Which of how many ranks this process is, as a launcher says in the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtdispatch.core.shown import MOST_SHOWN, printable

ENDED_ITS_RUN = "ended its run"  # what is said of a rank that left by itself
MEETING_POINT = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """This process among the ranks of a run.

    Args:
        rank: of this process.
        size: ranks in the run.
        local_rank: of this process on its machine.
        local_size: ranks on its machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_many(self) -> bool:
        """Whether other ranks take part."""
        return self.size > 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints, writes and judges."""
        return self.rank == 0


def read_world(environ: Mapping[str, str]) -> World:
    """Read what torchrun, or another launcher, wrote; one rank alone where none did."""
    rank, size = _number(environ, "RANK", -1), _number(environ, "WORLD_SIZE", -1)
    if not 0 <= rank < size or not all(environ.get(name) for name in MEETING_POINT):
        return World()
    return World(rank, size, _number(environ, "LOCAL_RANK", rank), _number(environ, "LOCAL_WORLD_SIZE", size))


def why_no_world(environ: Mapping[str, str]) -> str:
    """Say why a process that is named as one of many ranks cannot be that; empty of all others.

    Example:
        >>> why_no_world({"RANK": "0", "WORLD_SIZE": "1"}), why_no_world({})
        ('', '')
    """
    named = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if environ.get(name)}
    if read_world(environ).is_many or named.items() <= {"RANK": "0", "WORLD_SIZE": "1"}.items():
        return ""
    said = " and ".join(f"{name}={printable(text)[:MOST_SHOWN]}" for name, text in named.items())
    missing = [name for name in ("RANK", "WORLD_SIZE", *MEETING_POINT) if not environ.get(name)]
    if not missing:
        return f"{said} in the environment: RANK is a whole number from 0 up to WORLD_SIZE - 1"
    return (
        f"{said} in the environment, and no {' and no '.join(missing)}: start ranks by torchrun, "
        "or unset RANK and WORLD_SIZE to measure as one"
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence.

    Example:
        >>> ranks_text([2]), ranks_text([0, 1, 3])
        ('rank 2', 'ranks 0, 1, 3')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def lost_text(lost: Mapping[int, str]) -> str:
    """Say why ranks are lost.

    Example:
        >>> lost_text({2: "ended its run", 1: "left"})
        'rank 1 left; rank 2 ended its run'
    """
    return "; ".join(f"rank {rank} {why}" for rank, why in sorted(lost.items()))


def group_ranks(told: Iterable[tuple[int, Any]]) -> dict[Any, list[int]]:
    """Group ranks by what they say, in the order in which it was said first."""
    ranks: dict[Any, list[int]] = {}
    for rank, said in told:
        ranks.setdefault(said, []).append(rank)
    return ranks


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
