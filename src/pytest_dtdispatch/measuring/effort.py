"""How much is measured of one subject, so that it fits into the time. Without torch."""

from __future__ import annotations

from typing import NamedTuple

MIN_ROUNDS = 5
SLOW_NS = 3_000_000  # hits of less are never cut: 20 rounds of them fit into a second
# The first hit after a miss takes up to 0.5 ms more, however many ops it runs, and later ones do not: where
# a hit takes 50 ms that is 1 %, and no hit is discarded.
WARMUP_NS = 50_000_000
SHARE_OF_HITS = 0.1  # of the time, where misses alone take more than there is


class Effort(NamedTuple):
    """Calls that are made of one subject.

    Args:
        rounds: the most that are taken.
        in_a_row: rounds that take their misses one after the other.
        repeat: hits recorded for each round.
        warmup: hits discarded before those of a row.
        is_paced: whether a round that would end too late is not begun.
    """

    rounds: int
    in_a_row: int
    repeat: int
    warmup: int
    is_paced: bool = False

    def calls(self) -> int:
        """Count the calls of all rounds."""
        rows = -(-self.rounds // self.in_a_row)
        return self.rounds * (1 + self.repeat) + rows * self.warmup

    def ns(self, miss_ns: float, hit_ns: float) -> float:
        """Foretell how long all rounds take."""
        return self.rounds * miss_ns + (self.calls() - self.rounds) * hit_ns


def foretold_calls(asked: Effort, call_ns: int, budget_ns: float) -> int:
    """Foretell how many calls are made of what takes so long, whether it misses or hits.

    Example:
        >>> foretold_calls(Effort(20, 20, 10, 10), 140_000_000, 1e9)
        12
    """
    rehearsal = 2
    return rehearsal + fitted(asked, call_ns, call_ns, budget_ns, budget_ns).calls()


def fitted(asked: Effort, miss_ns: int, hit_ns: int, left_ns: float, budget_ns: float) -> Effort:
    """Cut what is asked so that it ends in time, where it can: the warm-up, then hits, then rounds.

    Five rounds are left in any case, with one hit each. What has fast hits is left as it is: there misses
    take the time, and the rounds look at the clock.

    Example:
        >>> fitted(Effort(20, 20, 10, 10), 145_000_000, 140_000_000, 715e6, 1e9)
        Effort(rounds=5, in_a_row=5, repeat=1, warmup=0, is_paced=True)
        >>> fitted(Effort(20, 20, 10, 10), 1_000_000, 10_000, 0.0, 1e9)
        Effort(rounds=20, in_a_row=20, repeat=10, warmup=10, is_paced=False)
    """
    if hit_ns < SLOW_NS or asked.ns(miss_ns, hit_ns) <= left_ns:
        return asked
    least = min(asked.rounds, MIN_ROUNDS)
    room = max(left_ns - least * (miss_ns + hit_ns), SHARE_OF_HITS * budget_ns)
    warmup = min(asked.warmup, WARMUP_NS // hit_ns, int(room / hit_ns))
    left_ns -= warmup * hit_ns
    for_hits = max(left_ns - least * miss_ns, SHARE_OF_HITS * budget_ns)
    repeat = max(1, min(asked.repeat, int(for_hits / (least * hit_ns))))
    rounds = max(least, min(asked.rounds, int(left_ns / (miss_ns + repeat * hit_ns))))
    return Effort(rounds, min(asked.in_a_row, rounds), repeat, warmup, is_paced=True)
