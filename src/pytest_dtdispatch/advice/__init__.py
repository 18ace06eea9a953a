"""Advice on changes to a step: rules over its events and their cost.

Each rule is one function. Rules run in order, and an event belongs to the first rule that claims it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from pytest_dtdispatch.advice import calls, collectives, conversions, costs, fsdp, placements, reads
from pytest_dtdispatch.advice.model import Finding, Observed, Rule, line_texts, where
from pytest_dtdispatch.budget.model import Budget, MeasuredBudget
from pytest_dtdispatch.core.events import OptimizerStep
from pytest_dtdispatch.core.results import PARTIAL_READS, Advice, AdviceKind
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.steps.events import Collective, Redistribution
from pytest_dtdispatch.steps.model import StepCounts

MAX_FINDINGS = 10  # of each class

# In order of priority: a rule sees the events that no earlier one claims.
RULES = (
    Rule(PARTIAL_READS, reads.partial_reads, AdviceKind.WAITS),
    Rule("reads", reads.repeated_reads, AdviceKind.WAITS),
    Rule("logits", placements.logits_gathered, AdviceKind.COMMUNICATION),
    Rule("matrices", placements.matrices_gathered_again, AdviceKind.COMMUNICATION),
    Rule("gradients", placements.gradients_reduced_again, AdviceKind.COMMUNICATION),
    Rule("norms", placements.sums_one_by_one, AdviceKind.COMMUNICATION),
    Rule("there and back", placements.there_and_back, AdviceKind.COMMUNICATION),
    Rule("needless pair", placements.needless_pairs, AdviceKind.COMMUNICATION),
    Rule("inputs", conversions.converted_inputs, AdviceKind.COMMUNICATION),
    Rule("repeated", placements.repeated_redistributions, AdviceKind.COMMUNICATION),
    Rule("replicated weights", placements.gathered_parameters, AdviceKind.COMMUNICATION),
    Rule("loops", placements.gathered_one_by_one, AdviceKind.COMMUNICATION),
    Rule("implied again", placements.repeated_implied_redistributions, AdviceKind.COMMUNICATION),
    Rule("implied", placements.implied_redistributions, AdviceKind.COMMUNICATION),
    Rule("flattened mesh", placements.unmerged_dimensions, AdviceKind.COMMUNICATION),
    Rule("numbers", collectives.numbers_one_by_one, AdviceKind.COMMUNICATION),
    Rule("loading", collectives.scattered_tensors, AdviceKind.COMMUNICATION),
    Rule("micro-batches", fsdp.micro_batches, AdviceKind.COMMUNICATION),
    Rule("repeated gathers", fsdp.repeated_gathers, AdviceKind.COMMUNICATION),
    Rule("kept gathered", fsdp.gathered_again, AdviceKind.COMMUNICATION),
    Rule("small groups", fsdp.small_groups, AdviceKind.COMMUNICATION),
    Rule("parameters", conversions.wrapped_parameters, AdviceKind.CPU_TIME),
    Rule("wraps", conversions.repeated_conversions, AdviceKind.COMMUNICATION),
    Rule("optimizer", costs.slow_optimizer, AdviceKind.CPU_TIME),
    Rule("lists", calls.elementwise_loops, AdviceKind.CPU_TIME),
    Rule("unbind", calls.selected_in_a_loop, AdviceKind.CPU_TIME),
    Rule("dimensions of size 1", calls.dimensions_of_one, AdviceKind.CPU_TIME),
    Rule("misses", costs.recurring_misses, AdviceKind.CPU_TIME),
    Rule("new plans", costs.new_plans, AdviceKind.CPU_TIME),
    Rule("growth", costs.growth, AdviceKind.MEMORY),
    Rule("modules", costs.elementwise_modules, AdviceKind.CPU_TIME),
    Rule("collector", costs.old_objects_collected, AdviceKind.CPU_TIME),
)


def advise(
    steps: Sequence[StepCounts],
    recorded: StepCounts | None = None,
    budget: Budget | None = None,
    optimizers: Collection[OptimizerStep | None] = (),
) -> tuple[Advice, ...]:
    """Return the advice of all rules on a step, by class, the largest saving of a class first.

    A change that may save a third of the step precedes those of other classes.

    Args:
        steps: counts of each step after the warm-up.
        recorded: counts of an earlier step all of whose ops were recorded; None without one.
        budget: budget of such a step; None if there are only counts.
        optimizers: optimizers that stepped in the budget.

    Returns:
        At most ten pieces of advice of each class.

    Example:
        >>> advise([StepCounts(hits=3)])
        ()
    """
    recorded, budget = recorded or StepCounts(), budget or Budget("step")
    stepped = optimizers or recorded.optimizers
    observed = Observed(steps, recorded, budget.cells, stepped, budget.collector)
    found = []
    for rule in RULES:
        for one in [*rule.find(observed)]:
            observed.claim(one.events if one.claims is None else one.claims)
            found.append((_advice(rule, one, budget.measured_ns), one))
    found.sort(key=lambda pair: pair[0].order)
    advice = []
    numbers = Counter[tuple[AdviceKind, bool]]()
    for each, one in found:
        group = each.kind, not each.change  # facts are a class of their own
        numbers[group] += 1
        if numbers[group] <= MAX_FINDINGS:
            lines = [event.place for event in one.events]  # their texts are expensive
            at = f" at {where(lines)}" if lines else ""
            seen = f"{one.seen}{at}{one.ending}"
            advice.append(replace(each, seen=seen, source_lines=line_texts(lines)))
    return tuple(advice)


def _advice(rule: Rule, one: Finding, step_ns: float) -> Advice:
    """Return a finding as advice without lines."""
    ns, share = one.ns, one.share
    if step_ns and not share:
        # At most the whole step, and at least nothing: differences of measured times may be negative.
        ns = min(max(ns, 0.0), step_ns)
        share = ns / step_ns
    kind = rule.kind
    moves = (event for event in one.events if isinstance(event, (Redistribution, Collective)))
    sends = one.bytes or any(event.bytes > 0 for event in moves)
    if kind is AdviceKind.COMMUNICATION and one.events and not sends:
        kind = AdviceKind.CPU_TIME
    ending = "es" if one.unit.endswith("s") else "s"
    saves = one.saves or f"saves at most {plural(one.count, one.unit, ending)}{one.of}"
    return Advice(
        one.seen,
        one.change,
        saves if one.change else "",
        one.count if one.change else 0,
        ns,
        share,
        rule=rule.name,
        kind=kind,
        bytes=one.bytes,
        unit=one.unit if one.change else "",
    )


def with_advice(measured: MeasuredBudget) -> Budget:
    """Return a measured budget with advice."""
    advice = advise(measured.counted, measured.recorded, measured.budget, measured.optimizers)
    return replace(measured.budget, advice=advice)
