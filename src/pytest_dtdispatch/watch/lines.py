"""One line about a step of a watched loop."""

from __future__ import annotations

from pytest_dtdispatch.steps.events import by_cause
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.watch.model import LoopStep, LoopSteps, Total

MOST_LISTED = 3
LEAST_TIMES = 5  # steady steps, before it is said what they take


def warmup_line(step: LoopStep) -> str:
    """Say of a step of the warm-up how much missed."""
    return f"step {step.number}: warm-up: {step.counts.misses:,} of {step.counts.calls:,} calls missed"


def steady_line(step: LoopStep) -> str:
    """Say what a steady step consists of."""
    return f"step {step.number}: steady: {transfers_text(step.counts)}, 0 misses"


def transfers_text(counts: StepCounts) -> str:
    """Say how many calls a step has, and how much it moves.

    Example:
        >>> transfers_text(StepCounts(hits=24, collectives=(("all_reduce", 1),)))
        '24 calls, 1 collective'
    """
    numbers = (
        ("call", counts.calls),
        ("redistribution", counts.redistributes),
        ("collective", counts.collective_calls),
        ("wrap", len(counts.wraps)),
        ("unwrap", len(counts.unwraps)),
    )
    return ", ".join(_number(count, name) for name, count in numbers if count or name == "call")


def disturbed_line(step: LoopStep, steps: LoopSteps) -> str:
    """Say what happened in a step that was not steady: what missed and why, and what it cost."""
    missed = by_cause([step.counts.missed])
    more = [f"and {_number(len(missed) - MOST_LISTED, 'more')}"] * (len(missed) > MOST_LISTED)
    told = [f"{_number(step.counts.misses, 'miss')}: {'; '.join([*missed[:MOST_LISTED], *more])}"] * bool(
        missed
    )
    entries = ", ".join(f"{name} {count:+,}" for name, count in step.new_entries.items())
    told += [f"cache entries: {entries}"] * bool(entries)
    told += _took(step, steps.steady)
    return f"step {step.number}: {'; '.join(told)}"


def calls_text(counts: StepCounts) -> str:
    """Say how many calls there were, and how many of them missed."""
    return f"{_number(counts.calls, 'call')}, {_number(counts.misses, 'miss')}"


def _took(step: LoopStep, steady: Total) -> list[str]:
    if step.took_ns is None:
        return []
    took = f"took {ms(step.took_ns)} ms"
    if steady.timed < LEAST_TIMES:
        return [took]
    least, most = steady.most_of_them_ns
    return [f"{took}, steady steps {ms(least)} to {ms(most)} ms"]


def ms(ns: float) -> str:
    """Write a time in milliseconds with three digits.

    Example:
        >>> ms(1234567), ms(123456789)
        ('1.23', '123')
    """
    value = ns / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(count: int, name: str) -> str:
    """Write a number with what it counts."""
    plural = {"miss": "misses", "more": "more"}.get(name, f"{name}s")
    return f"{count:,} {name if count == 1 else plural}"
