"""A budget: its length and shares, changes worth making, redistributions, parts, and other divisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from pytest_dtdispatch.budget.collector import CollectorPauses
from pytest_dtdispatch.budget.data import budgets_data
from pytest_dtdispatch.budget.model import MIN_WAITED, Budget, fold_shares
from pytest_dtdispatch.core.events import FSDP, REDISTRIBUTION, Part
from pytest_dtdispatch.core.measurement import traced_text
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import UNITS, plural, short, shorten_path
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Kind,
    Line,
    Paragraph,
    StackedBar,
    Table,
    Tone,
    View,
    paragraph,
)
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.steps.events import by_cause, with_short_path

REST = "unexplained"  # the last part of each step
ORDER = {part: number for number, part in enumerate((*map(str, Part), REST))}  # of parts and their colors
MIN_PART = 0.03  # smallest share of a step that a brief view has on its own


def document(budgets: Mapping[str, Sequence[Budget]], view: View) -> Document:
    """Render the budgets of each test."""
    every = [(test, budget) for test, of_test in budgets.items() for budget in of_test]
    blocks = tuple(block for test, budget in every for block in _blocks(test, budget, view))
    legend = (
        "Budget: measured is the median of undisturbed steps without waits for a core. Parts come from "
        "profiled steps, run alternately with plain ones. unexplained: measured less all parts."
    )
    of_share = "of measured, ~ if noisy"
    if not _has_all(view):
        of_share = "of measured; -v: parts, phases, lines, modules, ops"
    meanings = {
        "share": of_share,
        "mostly": "its largest parts",
        "profiler": "the profiler's own cost, already subtracted, or added if it is below 0; modelled: it is "
        "more than a tenth of the part",
    }
    return Document(blocks, legend, meanings, _worst_text(every))


def _has_all(view: View) -> bool:
    return view.verbose or view.for_page


def _worst_text(budgets: Sequence[tuple[str, Budget]]) -> str:
    """Name the part with the largest share of a step, and its main line; empty if all steps are noisy.

    The program's own parts do not count: in a step of large matrices, one of them is always the largest.
    """
    shares = {
        (number, part): ns / budget.measured_ns
        for number, (_, budget) in enumerate(budgets)
        if budget.measured_ns > 0 and not budget.is_noisy
        for part, ns in budget.parts.items()
        if ns > 0 and part not in (Part.LOCAL, Part.OTHER)  # the program's own, which DTensor cannot reduce
    }
    if not shares:
        return ""
    number, part = max(shares, key=shares.__getitem__)
    test, budget = budgets[number]
    step = "the step" if budget.name == "step" else budget.name
    step = f"{budget.name} in {test}" if len(budgets) > 1 else step
    line = max(budget.by_line(), key=lambda line: line.parts.get(part, 0.0))
    at = f", {line.parts[part] / budget.measured_ns:.0%} at {shorten_path(line.name)}" if line.name else ""
    return f"worst: {part}, {shares[number, part]:.0%} of {step}{at}"


def _blocks(test: str, budget: Budget, view: View) -> Iterator[Block]:
    """Yield the shares of a step, changes, redistributions, parts, notes and other divisions."""
    title = step_title(test, budget)
    noisy = "its steps scatter by more than 15 %; run it again on a quieter machine"
    head = f"{title}: noisy, {noisy}" if budget.is_noisy else title
    yield paragraph(head, Tone.STRONG, hanging=1)
    before = view.before.get(RowId(test, budget.name))
    if before is not None:
        yield from before_and_after(title, before, budget, view.about_before)
    elif budget.measured_ns > 0:
        yield _bar(budget.name, budget, _whole_ns(budget))
    if budget.measured_ns > 0:
        shown = _merged(_by_family(budget.parts), MIN_PART * budget.measured_ns, "small")
        if budget.steps:
            shown[REST] = budget.unexplained_ns
        scatter = f" +-{budget.scatter:.0%}" if budget.steps else ""
        shares = ", ".join(f"{part} {_percent(ns, budget, 0)}" for part, ns in shown.items())
        yield paragraph(f"{short(budget.measured_ns, UNITS)}{scatter}: {shares}", indent=1, hanging=1)
    if not view.for_page:
        yield from _changes(budget, view)
    if budget.redistributions:
        count, nbytes = len(budget.redistributions), sum(one.bytes for one in budget.redistributions)
        yield paragraph(f"{plural(count, 'redistribution')} of {nbytes:,} bytes in each step:", indent=1)
        causes = by_cause([map(with_short_path, budget.redistributions)], view.each_layer)
        for cause in view.listed(causes, " causes", 3):
            yield paragraph(cause, indent=2, hanging=1)
    yield _parts_table(budget, view)
    yield from _notes(budget, view)
    if view.verbose:
        yield from _details(budget, view)


def _changes(budget: Budget, view: View) -> Iterator[Paragraph]:
    """Yield the changes that save most, up to two of each class, and then facts."""
    shown, most = Counter[tuple[str, bool]](), 2
    for advice in budget.advice:
        group = advice.kind, not advice.change
        shown[group] += 1
        if view.verbose or shown[group] <= most:
            change = f": {advice.change} ({advice.saving})" if advice.change else ""
            yield paragraph(f"{advice.kind}: {advice.seen}{change}", Tone.GOOD, indent=1, hanging=1)
    more = sum(max(count - most, 0) for count in shown.values())
    if more and not view.verbose:
        yield paragraph(f"and {more:,} more; -v lists them", indent=1)


def _notes(budget: Budget, view: View) -> Iterator[Paragraph]:
    """Yield warnings about a budget and its parts, in a brief view without its small ones."""
    least_ns = 0 if view.verbose else MIN_PART * budget.measured_ns
    for part, ns in budget.parts.items():
        if ns < 0 and abs(ns) >= least_ns:
            text = f"{part} is below 0: more was subtracted for the profiler than it took"
            yield paragraph(text, indent=1)
    slowing = [traced_text(budget.tracers)] if budget.tracers else []
    if budget.slowed_by:
        settings = ", ".join(f"{name} {value}" for name, value in budget.slowed_by.items())
        slowing.append(f"settings that can make calls longer: {settings}")
    texts = ["; ".join(slowing), budget.note]
    is_far = abs(budget.unexplained_ns) > 0.1 * budget.measured_ns
    if is_far and budget.steps and not budget.is_noisy:
        remedy = "run it again: if they do so on a quiet machine, the profiler changes what the step runs"
        texts += [f"unexplained: the parts miss the step by more than a tenth; {remedy}"]
    if budget.waiting_ns > MIN_WAITED * budget.measured_ns:
        texts += [f"waiting for a core: {us(budget.waiting_ns)} us more in each step, which no part contains"]
    of_dtensors = {Part.DISPATCH, Part.PROPAGATION, Part.WRAPPING, *REDISTRIBUTION}
    if budget.parts and of_dtensors.isdisjoint(budget.parts):
        texts += ["No op on DTensors ran"]
    yield from (paragraph(text, Tone.NOTICE, indent=1, hanging=1) for text in texts if text)


def _details(budget: Budget, view: View) -> Iterator[Block]:
    """Yield the most expensive phases, lines, modules and ops, the cost of profiling, and collections."""
    for title, shares, nameless in (
        ("phase", budget.by_phase(), "(not known)"),
        ("line", budget.by_line(), "(not known)"),
        ("module", budget.by_module(), "(outside of modules)"),
        ("op", budget.by_op(), "(outside of ops)"),
    ):
        if title in ("module", "op") and not view.each_layer:
            shares = fold_shares(shares)
        if not shares or (len(shares) == 1 and not shares[0].name):
            continue
        shown = shares if view.each_layer or view.for_page else shares[:10]
        rest = shares[len(shown) :]
        lines = []
        for share in shown:
            calls = format(share.calls, ",.0f" if share.calls >= 1 else ".2g") if share.calls else "-"
            cells = {**_cost_cells(share.ns, budget), Column("calls"): calls}
            sums = _by_family(share.parts)
            largest = [(part, ns) for part, ns in sums.most_common(2) if ns >= 0.2 * share.ns > 0]
            mostly = ", ".join(f"{part} {ns / share.ns:.0%}" for part, ns in largest)
            lines.append(Line(shorten_path(share.name) or nameless, cells, mostly))
        if rest:
            cells = {**_cost_cells(sum(share.ns for share in rest), budget), Column("calls"): "-"}
            lines.append(Line(f"{len(rest)} more", cells))
        room = max(len(line.status) for line in lines)
        yield Table((Group("", lines),), title, "mostly", optional=("calls",), status_room=room)
    steps = f". {budget.steps} steps undisturbed, {budget.steps} profiled" if budget.steps else ""
    profiling = f"Profiling had no visible cost{steps}"
    if budget.event_ns >= 0:
        slower = budget.timed_ns / budget.measured_ns if budget.measured_ns else 0.0
        cost = f"{budget.events:,.0f} events x {budget.event_ns:,.0f} ns were subtracted"
        profiling = f"Profiled steps took {slower:.2f}x the time of undisturbed ones; {cost}{steps}"
    yield paragraph(profiling, indent=1)
    if budget.collector:
        yield paragraph(collector_text(budget.collector), indent=1)


def step_title(test: str, budget: Budget) -> str:
    """Return the title of a budget."""
    return f"{test}: {budget.name} (budget)"


def all_parts(budget: Budget) -> dict[str, float]:
    """Return the nanoseconds of each part and of the unexplained rest."""
    return {**budget.parts, REST: budget.unexplained_ns}


def _merged(parts: Mapping[str, float], least_ns: float, size: str) -> dict[str, float]:
    """Return the nanoseconds of parts, the largest first; several small ones are merged into one."""
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    small = [part for part, ns in ordered.items() if abs(ns) < least_ns]
    if len(small) < 2:
        return ordered
    small_ns = sum(ordered.pop(part) for part in small)
    return {**ordered, f"{len(small)} {size} parts": small_ns}


def before_and_after(title: str, before: Budget, after: Budget, about_before: str) -> Iterator[Block]:
    """Render two budgets of a step side by side; differences are not judged."""
    whole_ns = max(_whole_ns(before), _whole_ns(after))
    if whole_ns > 0:
        yield _bar(f"{title} before", before, whole_ns)
        yield _bar(f"{title} after", after, whole_ns)
    scatter_ns = [budget.scatter * budget.measured_ns for budget in (before, after)]
    has_noise = min(scatter_ns) > 0
    then, now = all_parts(before), all_parts(after)
    ordered = sorted({**then, **now}, key=lambda part: ORDER.get(part, len(ORDER)))
    figures = [(part, then.get(part, 0.0), now.get(part, 0.0)) for part in ordered]
    figures.append(("measured", before.measured_ns, after.measured_ns))
    lines = []
    for part, then_ns, now_ns in figures:
        by_ns = now_ns - then_ns
        cells = {
            Column("before", "us"): us(then_ns),
            Column("after", "us"): us(now_ns),
            Column("change", "us"): f"+{us(by_ns)}" if by_ns > 0 else us(by_ns),
            Column("of step"): f"{by_ns / before.measured_ns:+.1%}" if before.measured_ns else "-",
        }
        is_noise = has_noise and abs(by_ns) <= sum(scatter_ns)
        lines.append(Line(part, cells, "yes" if is_noise else ""))
    group = Group(f"{title}: before and after", lines)
    yield Table((group,), "part", "noise", optional=("of step",), has_total=True)
    both_ns = "{} us before and {} us after".format(*map(us, scatter_ns))
    scatter = f"Steps scatter by {both_ns}; noise: a change of at most both together"
    scatter = scatter if has_noise else "One of them ran once, so its scatter is unknown"
    yield paragraph(f"{about_before}. {scatter}. of step: the change in percent of the step before", indent=1)


def pairs_document(before: ReportedRun, after: ReportedRun) -> Document:
    """Render the budgets of two saved runs side by side, for each step that both have."""
    then, now = before.results_by_row(Budget.kind), after.results_by_row(Budget.kind)
    about_before, blocks = before.as_earlier(after.environment), list[Block]()
    for row, one in now.items():
        if row in then:
            blocks += before_and_after(step_title(row.test, one), then[row], one, about_before)
    return Document(tuple(blocks))


def _whole_ns(budget: Budget) -> float:
    """Return the length of a bar: the whole step, or the sum of its parts if that is more."""
    return max(budget.measured_ns, budget.measured_ns - budget.unexplained_ns)


def _bar(title: str, budget: Budget, whole_ns: float) -> StackedBar:
    """Render the parts of a step as a bar, each in its own color."""
    rest_ns = budget.unexplained_ns
    parts = tuple(
        (f"{part} {us(ns)} us, {_percent(ns, budget)}", max(ns, 0.0) / whole_ns, ORDER.get(part, 0))
        for part, ns in all_parts(budget).items()
        if part != REST or ns > 0
    )
    return StackedBar(title, f"{us(budget.measured_ns)} us", parts, has_rest=rest_ns > 0)


def _parts_table(budget: Budget, view: View) -> Table:
    """Render the parts of a step, in a brief view the large ones; a verbose view adds costs of profiling."""
    figures = _merged(budget.parts, 0 if _has_all(view) else 0.1 * budget.measured_ns, "smaller")
    if budget.steps:
        figures[REST] = budget.unexplained_ns
    figures["measured"] = budget.measured_ns
    lines = []
    for name, ns in figures.items():
        status, cells = "", _cost_cells(ns, budget)
        if view.verbose:
            cells[Column("profiler", "us")] = us(budget.timing_ns(name)) if name in budget.parts else "-"
        if view.verbose and name in budget.parts:
            status = budget.basis(name)
        elif name == "measured" and budget.steps:
            status = f"+-{budget.scatter:.0%}"
        label = f"{name} ({budget.elsewhere})" if name == Part.SENDING and budget.elsewhere else name
        lines.append(Line(label, cells, status))
    status_title = "known" if view.verbose else ""
    return Table((Group("", lines),), "part", status_title, optional=("profiler",), has_total=True)


def _cost_cells(ns: float, budget: Budget) -> dict[Column, str]:
    return {Column("us"): us(ns), Column("share"): _percent(ns, budget)}


def collector_text(found: CollectorPauses) -> str:
    """Format pauses of Python's garbage collector in one line.

    Example:
        >>> collector_text(CollectorPauses(20))
        'garbage collector, off in timed steps; in 20 more: 0 pauses'
    """
    share = f"{found.share:.1%} of their time, " if found.share is not None else ""
    pauses = [f"{share}{plural(found.pauses, 'pause')}"]
    if found.pauses:
        pauses += [f"{found.oldest:,} of the oldest generation", f"longest {short(found.longest_ns, UNITS)}"]
    return f"garbage collector, off in timed steps; in {found.steps:,} more: {', '.join(pauses)}"


def us(ns: float) -> str:
    """Format a time in microseconds.

    Example:
        >>> us(1234567), us(1234)
        ('1,235', '1.2')
    """
    return f"{ns / 1e3:,.0f}" if abs(ns) >= 1e5 else f"{ns / 1e3:.1f}"


def _percent(ns: float, budget: Budget, digits: int = 1) -> str:
    """Format a share of a step; that of a noisy one is marked."""
    if not budget.measured_ns:
        return "-"
    mark = "~" if budget.is_noisy else ""
    return f"{mark}{ns / budget.measured_ns:.{digits}%}"


def family_of(part: str) -> str:
    """Return the part, or the common name of all parts of redistributions, or of FSDP2."""
    return part.partition(" ")[0] if part in (*REDISTRIBUTION, *FSDP) else part


def _by_family(parts: Mapping[str, float]) -> Counter[str]:
    """Sum nanoseconds by part; all parts of redistributions are one, and so are those of FSDP2."""
    sums = Counter[str]()
    for part, ns in parts.items():
        sums[family_of(part)] += round(ns)
    return sums


KIND = Kind(
    Budget.kind,
    document,
    title="Budget of each step",
    type=Budget,
    shows_earlier=True,
    advice=attrgetter("advice"),
    data=budgets_data,
)
