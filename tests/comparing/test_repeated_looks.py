"""Comparisons that end at the first certain round keep their rate of errors. Without torch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from pytest_dtdispatch.comparing.model import Outcome, Ratio, ratio_after
from pytest_dtdispatch.stats.intervals import LOOKS

Noise = Callable[[random.Random, int], float]
CALLS, ROUNDS = 3, 50  # of a step of 50 ms in 20 s, with 50 ms to fill the caches: see calls_of_block


def normal(draw: random.Random, call: int) -> float:
    return draw.gauss(1, 0.05)


def drifting(draw: random.Random, call: int) -> float:
    """A machine that becomes a third slower, and faster again."""
    return draw.gauss(1, 0.05) * (1 + 0.3 * math.sin(call / 40))


def heavy(draw: random.Random, call: int) -> float:
    """One call of ten is interrupted."""
    return draw.gauss(1, 0.05) + (draw.paretovariate(1.5) * 0.3 if draw.random() < 0.1 else 0)


def bursts(draw: random.Random, call: int) -> float:
    """The machine is slower by half for a few calls, which may be those of one variant."""
    return draw.gauss(1, 0.05) * (1.5 if math.sin(call * call) > 0.7 else 1)


def compared(noise: Noise, ratio: float, seed: int) -> Ratio:
    """Compare simulated samples in rounds until their ratio is decided, as a measurement does."""
    draw, call = random.Random(seed), 0
    samples: tuple[list[int], list[int]] = ([], [])
    found = None
    for rounds in range(1, ROUNDS + 1):
        order = ((samples[0], 1.0), (samples[1], ratio))
        for values, factor in order[:: (-1) ** rounds]:
            block = [noise(draw, call + n) for n in range(CALLS)]
            values.append(round(50e6 * factor * sum(block) / CALLS))
            call += CALLS
        if LOOKS * rounds // ROUNDS > LOOKS * (rounds - 1) // ROUNDS:
            found = ratio_after(rounds / ROUNDS, *samples)
            if found and found.is_decided:
                return found
    assert found
    return found


@pytest.mark.parametrize("noise", [normal, drifting, heavy, bursts])
def test_equal_variants_never_differ(noise: Noise) -> None:
    outcomes = {compared(noise, 1.0, seed).outcome() for seed in range(100)}
    assert outcomes == {Outcome.NOT_APART}


@pytest.mark.parametrize("noise", [normal, drifting, heavy, bursts])
def test_intervals_contain_the_true_ratio(noise: Noise) -> None:
    found = [compared(noise, 0.97, seed) for seed in range(100)]
    assert all(ratio.low < 0.97 < ratio.high for ratio in found)  # of them, 0.1 % may not


@pytest.mark.parametrize(("noise", "least"), [(normal, 93), (drifting, 85)])
def test_gain_of_six_percent_is_confirmed(noise: Noise, least: int) -> None:
    outcomes = [compared(noise, 0.94, seed).outcome() for seed in range(100)]
    assert outcomes.count(Outcome.FASTER) >= least
    assert Outcome.SLOWER not in outcomes


def test_large_difference_ends_before_the_time_limit() -> None:
    assert compared(normal, 0.5, 0).rounds < ROUNDS
