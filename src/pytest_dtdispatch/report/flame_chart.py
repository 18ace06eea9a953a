"""Where the instructions of a call went, as an icicle: callers above what they call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.profiles import CalledFunction, Profile
from pytest_dtdispatch.report.drawing import box, clipped, drawing
from pytest_dtdispatch.report.html_parts import Html, element

LINE = 19
LEAST = 0.002  # share of the whole that is drawn
MOST_DEPTH = 60
WIDE_ENOUGH = 0.02  # share that has room for a few letters
COLORS = 8


@dataclass(frozen=True)
class Frame:
    """A function in the chart.

    Args:
        function: its name, and where it is.
        depth: how many callers it has.
        start: where it begins, in instructions from the left.
        instructions: its own, with those of all that it calls.
    """

    function: str
    depth: int
    start: int
    instructions: int


def frames_of(calls: Sequence[CalledFunction]) -> list[Frame]:
    """Lay out functions, each as wide as it is with all that it calls, before those that it calls.

    Example:
        >>> calls = [CalledFunction(0, "call", 5), CalledFunction(1, "add", 7), CalledFunction(1, "mul", 2)]
        >>> [(frame.function, frame.start, frame.instructions) for frame in frames_of(calls)]
        [('call', 0, 14), ('add', 0, 7), ('mul', 7, 2)]
    """
    whole = [max(one.instructions, 0) for one in calls]
    callers: list[int] = []
    above: list[int | None] = []
    for n, one in enumerate(calls):
        del callers[one.depth :]
        above.append(callers[-1] if callers else None)
        callers.append(n)
    for n in range(len(calls) - 1, -1, -1):
        if (caller := above[n]) is not None:
            whole[caller] += whole[n]
    frames: list[Frame] = []
    filled = 0  # by those that nothing called
    used = [0] * len(calls)
    for n, one in enumerate(calls):
        caller = above[n]
        start = filled if caller is None else frames[caller].start + used[caller]
        if caller is None:
            filled += whole[n]
        else:
            used[caller] += whole[n]
        frames.append(Frame(one.function, one.depth, start, whole[n]))
    return frames


def flame_chart(profile: Profile) -> Html:
    """Draw the functions of Python that a call ran; those too small to see are left out, and said."""
    frames = frames_of(profile.calls)
    total = sum(frame.instructions for frame in frames if not frame.depth) or 1
    drawn = [frame for frame in frames if frame.instructions >= LEAST * total and frame.depth < MOST_DEPTH]
    height = LINE * (1 + max((frame.depth for frame in drawn), default=0))
    shapes: list[Html] = []
    for n, frame in enumerate(drawn):
        start, stop = frame.start / total, (frame.start + frame.instructions) / total
        said = f"{frame.function}: {frame.instructions:,} instructions, {stop - start:.1%}"
        y = frame.depth * LINE
        shapes.append(box(start, stop, y, LINE, f"p{n % COLORS}", element("title", said)))
        if stop - start > WIDE_ENOUGH:
            shapes.append(clipped(start, stop, y, LINE, frame.function))
    left_out = len(frames) - len(drawn)
    more = f"; {left_out:,} with less than {LEAST:.1%} are left out" if left_out else ""
    caption = element(
        "figcaption",
        f"{total:,} instructions in {len(frames):,} functions of Python by their callers, "
        f"each with the machine code that it called{more}.",
    )
    chart = drawing(
        f"functions of Python, callers above what they call; {total:,} instructions", height, *shapes
    )
    return element("figure", caption, chart, class_="flame")
