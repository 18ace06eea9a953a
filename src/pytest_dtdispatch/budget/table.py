"""Tables of a budget: its parts, and their breakdown by phase, line, module and op."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_dtdispatch.budget.model import Budget, CostShare, fold_shares
from pytest_dtdispatch.core.events import Part, StepParts
from pytest_dtdispatch.core.text import shorten_path
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Kind,
    Line,
    StackedBar,
    Table,
    Tone,
    View,
    paragraph,
)
from pytest_dtdispatch.report.run import ReportedRun

MAX_LINES = 5  # of a breakdown, unless the view is verbose
REST = "unexplained"  # the last part of each step
ORDER = {part: number for number, part in enumerate((*map(str, Part), REST))}  # of parts and their colors
UNKNOWN = "(not known)"
# Title, shares, and the label of shares without a name.
BREAKDOWNS: tuple[tuple[str, Callable[[Budget], list[CostShare]], str], ...] = (
    ("phase", Budget.by_phase, UNKNOWN),
    ("line", Budget.by_line, UNKNOWN),
    ("module", Budget.by_module, "(outside of modules)"),
    ("op", Budget.by_op, "(Python)"),
)
# Parts of steps without DTensors.
PLAIN_PARTS = {Part.LOCAL, Part.AUTOGRAD, Part.COMMUNICATION, Part.OTHER, Part.WAITING}
LAYERED = ("module", "op")  # breakdowns whose names may contain the index of a layer
MEANINGS = {"mostly": "its largest parts"}
NOISY = "noisy: its steps scatter by more than 15 %; run it again on a quieter machine"
UNEXPLAINED = "unexplained: the parts miss the step by more than noise; a profiled step runs other code"
LEGEND = (
    "Budget: measured is the median of undisturbed steps. Parts come from profiled steps, run alternately "
    "with plain ones; the profiler's own cost (off) is subtracted, or added if it is below 0. "
    "modelled: more than a tenth of the part was subtracted. unexplained: measured less all parts."
)
OF_STEP = "of step: the change in percent of the step before"
RAN_ONCE = "One of them ran once, so its scatter is unknown"


def document(budgets: Mapping[str, Sequence[Budget]], view: View) -> Document:
    """Render the budgets of each test."""
    every = [(test, budget) for test, of_test in budgets.items() for budget in of_test]
    blocks = tuple(block for test, budget in every for block in _blocks(test, budget, view))
    return Document(blocks, LEGEND, MEANINGS, _worst_text(every))


def _worst_text(budgets: Sequence[tuple[str, Budget]]) -> str:
    """Name the line and its part with the largest share of a step, except local ops and other Python."""
    shares: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for test, budget in budgets:
        own = "the step" if budget.name == "step" else budget.name
        step = f"{budget.name} in {test}" if len(budgets) > 1 else own
        for cell in budget.cells:
            if cell.place and budget.measured_ns and cell.part not in (Part.LOCAL, Part.OTHER):
                share = cell.ns / budget.measured_ns
                shares[_family(cell.part), shorten_path(cell.place.line_text), step] += share
    if not shares:
        return "worst: no time in dispatch"
    (part, line, step), share = max(shares.items(), key=lambda one: one[1])
    return f"worst: {part} at {line}, {share:.0%} of {step}"


def _blocks(test: str, budget: Budget, view: View) -> Iterator[Block]:
    step = step_parts(test, budget)
    if budget.is_noisy:
        yield paragraph(f"{step.title} is {NOISY}", Tone.NOTICE)
    if (before := view.before.get(step.title)) is not None:
        yield from before_and_after(before, step)
    elif budget.measured_ns > 0:
        yield _bar(step.title, step, _whole_ns(step), UNEXPLAINED * budget.is_unexplained)
    yield _parts(step.title, budget)
    yield paragraph(_profiling_text(budget), indent=1)
    for notice in (UNEXPLAINED * budget.is_unexplained, budget.note):
        if notice:
            yield paragraph(notice, Tone.NOTICE, indent=1)
    if budget.parts and PLAIN_PARTS.issuperset(budget.parts):
        yield paragraph("No op on DTensors ran", Tone.NOTICE, indent=1)
    for advice in budget.advice:
        yield paragraph(advice.lines[0], Tone.GOOD, indent=1, hanging=1)
        yield paragraph(advice.lines[1].strip(), indent=2)
    yield from _breakdowns(budget, view)


def _breakdowns(budget: Budget, view: View) -> Iterator[Table]:
    for title, shares_of, nameless in BREAKDOWNS:
        shares = shares_of(budget)
        if title in LAYERED and not view.each_layer:
            shares = fold_shares(shares)
        if len(shares) > 1 or (shares and shares[0].name):
            yield _breakdown(title, shares, nameless, budget, len(shares) if view.verbose else MAX_LINES)


def step_parts(test: str, budget: Budget) -> StepParts:
    """Return the parts of a budget, for comparison with a later one."""
    parts = {**budget.parts, REST: budget.unexplained_ns}
    scatter_ns = budget.scatter * budget.measured_ns
    return StepParts(f"{test}: {budget.name} (budget)", budget.measured_ns, scatter_ns, parts)


def before_and_after(before: StepParts, after: StepParts) -> Iterator[Block]:
    """Render two budgets of a step side by side; differences are not judged."""
    whole_ns = max(_whole_ns(before), _whole_ns(after))
    if whole_ns > 0:
        yield _bar(f"{before.title} before", before, whole_ns)
        yield _bar(f"{after.title} after", after, whole_ns)
    has_noise = before.scatter_ns > 0 and after.scatter_ns > 0
    noise_ns = before.scatter_ns + after.scatter_ns if has_noise else -1.0
    both = {**before.parts, **after.parts}
    ordered = sorted(both, key=lambda part: ORDER.get(part, len(ORDER)))
    pairs = [(part, before.parts.get(part, 0.0), after.parts.get(part, 0.0)) for part in ordered]
    lines = []
    for part, then_ns, now_ns in (*pairs, ("measured", before.measured_ns, after.measured_ns)):
        by_ns = now_ns - then_ns
        share = f"{by_ns / before.measured_ns:+.1%}" if before.measured_ns else "-"
        cells = us(then_ns), us(now_ns), f"{'+' * (by_ns > 0)}{us(by_ns)}", share
        lines.append(Line(part, cells, "yes" * (abs(by_ns) <= noise_ns)))
    columns = Column("before", "us"), Column("after", "us"), Column("change", "us"), Column("of step")
    title = f"{after.title}: before and after"
    yield Table(columns, (Group(title, tuple(lines)),), "part", "noise", expendable=("of step",))
    both_ns = f"{us(before.scatter_ns)} us before and {us(after.scatter_ns)} us after"
    scatter = f"Steps scatter by {both_ns}; noise: a change of at most both together"
    scatter = scatter if has_noise else RAN_ONCE
    yield paragraph(f"{before.about}. {scatter}. {OF_STEP}", indent=1)


def pairs_document(before: ReportedRun, after: ReportedRun) -> Document:
    """Render the budgets of two saved runs side by side, for each step that both have."""
    earlier = before.budgets_before()
    pairs = [(earlier[one.title], one) for one in after.budgets if one.title in earlier]
    return Document(tuple(block for pair in pairs for block in before_and_after(*pair)))


def _whole_ns(step: StepParts) -> float:
    """Return the length of a bar: the whole step, or the sum of its parts if that is more."""
    return max(step.measured_ns, step.measured_ns - step.parts.get(REST, 0.0))


def _bar(title: str, step: StepParts, whole_ns: float, note: str = "") -> StackedBar:
    """Render the parts of a step as a bar, each in its own color."""
    rest_ns = step.parts.get(REST, 0.0)
    over = f"the parts come to {us(-rest_ns)} us more than the step"
    parts = tuple(
        (f"{part} {us(ns)} us, {_percent(ns, step)}", max(ns, 0.0) / whole_ns, ORDER.get(part, 0))
        for part, ns in step.parts.items()
        if part != REST or ns > 0
    )
    notes = "; ".join([note] * bool(note) + [over] * (rest_ns < 0))
    return StackedBar(title, f"{us(step.measured_ns)} us", parts, notes, has_rest=rest_ns > 0)


def _parts(title: str, budget: Budget) -> Table:
    off = dict.fromkeys(budget.parts, 0.0)
    for cell in budget.cells:
        off[cell.part] += cell.timing_ns
    titles = {str(Part.SENDING): f"{Part.SENDING} ({budget.elsewhere})"} if budget.elsewhere else {}
    lines = [
        Line(titles.get(part, part), _cells(ns, budget, us(off[part])), budget.basis(part))
        for part, ns in budget.parts.items()
    ]
    if budget.steps:
        lines.append(Line(REST, _cells(budget.unexplained_ns, budget)))
    spread = f"+-{budget.scatter:.0%}" if budget.steps else ""
    lines.append(Line("measured", _cells(budget.measured_ns, budget), spread))
    columns = Column("us"), Column("share"), Column("off", "us")
    return Table(columns, (Group(title, tuple(lines)),), "part", "known", expendable=("off",))


def _profiling_text(budget: Budget) -> str:
    on_core_ns = budget.measured_ns - budget.waiting_ns
    slower = budget.timed_ns / on_core_ns if on_core_ns else 0.0
    steps = f". {budget.steps} steps undisturbed, {budget.steps} profiled" if budget.steps else ""
    if budget.event_ns < 0:
        return f"Profiling had no visible cost{steps}"
    cost = f"{budget.events:,.0f} events x {budget.event_ns:,.0f} ns were subtracted"
    return f"Profiling made the step {slower:.2f}x slower; {cost}{steps}"


def _breakdown(
    title: str, shares: Sequence[CostShare], nameless: str, budget: Budget, max_lines: int
) -> Table:
    lines = []
    for share in shares[:max_lines]:
        cells = _cells(share.ns, budget, _calls(share.calls))
        lines.append(Line(shorten_path(share.name) or nameless, cells, _mostly(share)))
    if rest := shares[max_lines:]:
        lines.append(Line(f"{len(rest)} more", _cells(sum(share.ns for share in rest), budget)))
    columns = Column("us"), Column("share"), Column("calls")
    room = max(len(line.proof) for line in lines)
    return Table(columns, (Group("", tuple(lines)),), title, "mostly", expendable=("calls",), proof_room=room)


def _calls(calls: float) -> str:
    """Format calls a step: whole from 1 on, and a dash for 0.

    Example:
        >>> _calls(1030.4), _calls(0.5), _calls(0.0)
        ('1,030', '0.5', '-')
    """
    return f"{calls:,.0f}" if calls >= 1 else f"{calls:.2g}" if calls else "-"


def us(ns: float) -> str:
    """Format a time in microseconds.

    Example:
        >>> us(1234567), us(1234)
        ('1,235', '1.2')
    """
    return f"{ns / 1e3:,.0f}" if abs(ns) >= 1e5 else f"{ns / 1e3:.1f}"


def _percent(ns: float, budget: Budget | StepParts) -> str:
    return f"{ns / budget.measured_ns:.1%}" if budget.measured_ns else "-"


def _cells(ns: float, budget: Budget, last: str = "-") -> tuple[str, str, str]:
    return us(ns), _percent(ns, budget), last


def _mostly(share: CostShare) -> str:
    """Name the two largest parts; all parts of redistributions count as one."""
    sums: Counter[str] = Counter()
    for part, ns in share.parts.items():
        sums[_family(part)] += round(ns)
    largest = [(part, ns) for part, ns in sums.most_common(2) if ns >= 0.2 * share.ns > 0]
    return ", ".join(f"{part} {ns / share.ns:.0%}" for part, ns in largest)


def _family(part: str) -> str:
    """Return the first word of a part: all parts of redistributions are one family."""
    return part.partition(" ")[0]


KIND = Kind(Budget.kind, document)
