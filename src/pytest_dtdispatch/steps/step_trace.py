"""The spans of steps: what was counted in each of them, and the modules and phases that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from pytest_dtdispatch.core.places import CodePlace, Phase
from pytest_dtdispatch.core.spans import Interval, TraceSpan
from pytest_dtdispatch.measuring.program_trace import ProgramTrace
from pytest_dtdispatch.steps.happened import Collective, Miss, Redistribution, Wrapping, change_text
from pytest_dtdispatch.steps.model import StepCounts


class StepTrace:
    """Record modules and phases while this is open, and of each step what a counter listed.

    Open it before the first step, around the counter or inside of it.

    Example:
        >>> with StepTrace() as trace:
        ...     trace.add("1", StepCounts(hits=3, when=Interval(1, 1_000, 9_000)))
        >>> [(span.kind, span.name, span.arguments["hits"]) for span in trace.spans if span.kind == "step"]
        [('step', '1', 3)]
    """

    def __init__(self) -> None:
        self._program = ProgramTrace()
        self._steps: list[TraceSpan] = []

    def __enter__(self) -> StepTrace:
        self._program.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._program.__exit__(*exception)

    def add(self, name: str, counts: StepCounts) -> None:
        """Add a step that is over: its span, and one of all that was listed in it."""
        if (step := counts.when) is None:
            return
        self._steps.append(TraceSpan("step", name, step, _totals(counts)))
        self._steps.extend(_spans_of(counts))
        latest_first = reversed(self._program.spans)
        since = takewhile(lambda span: span.when.end_ns >= step.begin_ns, latest_first)
        self._steps.extend(_forward(step, [span for span in since if step.holds(span.when)]))

    @property
    def spans(self) -> tuple[TraceSpan, ...]:
        """All there are so far."""
        return (*self._steps, *self._program.spans)


def _totals(counts: StepCounts) -> dict[str, str | int]:
    return {
        "hits": counts.hits,
        "misses": counts.misses,
        "redistributions": counts.redistributes,
        "wraps": len(counts.wraps),
        "unwraps": len(counts.unwraps),
        "collectives": counts.collective_calls,
    }


def _spans_of(counts: StepCounts) -> Iterator[TraceSpan]:
    """Make a span of each thing that happened in a step."""
    yield from _of_kind("miss", counts.missed, lambda miss: (miss.signature, _of_miss(miss)))
    yield from _of_kind("redistribution", counts.redistributions, _of_redistribution)
    yield from _of_kind("wrap", counts.wraps, _of_wrapping)
    yield from _of_kind("unwrap", counts.unwraps, _of_wrapping)
    yield from _of_kind("collective", counts.collective_runs, lambda one: (one.kind, {"bytes": one.bytes}))


def _of_kind(
    kind: str,
    happened: Sequence[Miss | Redistribution | Wrapping | Collective],
    described: Callable[[Any], tuple[str, dict[str, str | int]]],
) -> Iterator[TraceSpan]:
    for one in happened:
        if one.when is not None:
            name, arguments = described(one)
            yield TraceSpan(kind, name, one.when, {**arguments, **_at(one.place)})


def _of_miss(miss: Miss) -> dict[str, str | int]:
    return {
        "signature": miss.signature,
        "reason": miss.reason,
        "asked": str(miss.asked),
        "nested propagations": miss.nested,
    }


def _of_redistribution(one: Redistribution) -> tuple[str, dict[str, str | int]]:
    change = change_text(one.source, one.target)
    return change, {"op": one.op, "tensor": one.tensor, "placements": change, "bytes": one.bytes}


def _of_wrapping(one: Wrapping) -> tuple[str, dict[str, str | int]]:
    return one.name, {"tensor": one.tensor, "placements": " ".join(one.placements)}


def _at(place: CodePlace | None) -> dict[str, str | int]:
    if place is None:
        return {}
    at = f"{place.short_file}:{place.line}" if place.file else ""
    return {"at": at, "module": place.module, "phase": str(place.phase)}


def _forward(step: Interval, inside: Sequence[TraceSpan]) -> Iterator[TraceSpan]:
    """Find forward between other phases: what comes before a backward, or has modules.

    In a step without a backward, what comes last is forward too.
    """
    modules = [span.when for span in inside if span.kind == "module"]
    phases = sorted((span for span in inside if span.kind == "phase"), key=lambda span: span.when.begin_ns)
    has_backward = any(phase.name == Phase.BACKWARD for phase in phases)
    begin_ns = step.begin_ns
    for phase in (*phases, None):
        gap = Interval(step.thread, begin_ns, step.end_ns if phase is None else phase.when.begin_ns)
        is_forward = not has_backward if phase is None else phase.name == Phase.BACKWARD
        if gap.begin_ns < gap.end_ns and (is_forward or any(map(gap.holds, modules))):
            yield from _nesting(gap, modules)
        begin_ns = gap.end_ns if phase is None else max(begin_ns, phase.when.end_ns)


def _nesting(gap: Interval, modules: Sequence[Interval]) -> Iterator[TraceSpan]:
    """Make it a span, unless a module calls another phase itself, and is around both."""
    if all(gap.holds(one) or one.end_ns <= gap.begin_ns or gap.end_ns <= one.begin_ns for one in modules):
        yield TraceSpan("phase", str(Phase.FORWARD), gap)
