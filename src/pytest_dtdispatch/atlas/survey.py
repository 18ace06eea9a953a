"""Rows of the atlas: measure ops in their layouts, whatever torch says, and count what a miss does."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.atlas.arguments import Arguments, find_arguments
from pytest_dtdispatch.atlas.layouts import Layout, layouts_of
from pytest_dtdispatch.atlas.model import AtlasRow, Counts, Move, Outcome
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.op_call import OpCall, signature_of, tensor_text
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import Redistribution
from pytest_dtdispatch.torchapi.ops import arguments_of, tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import tensor_traits

# Few samples of many signatures: the whole takes minutes.
PLAN = Plan(rounds=2, repeat=25, max_time_s=0.1, cold=True)
# A neighbour on the machine slows all samples of a visit: others minutes later show whether one did.
VISITS, MAX_VISITS = 2, 5
VISITING_S = 270  # seconds from the start, after which no signature is visited again for disagreement alone
MAX_MESSAGE = 240  # characters
# A counter collects garbage after each signature, the slower the more has come since it was entered.
BATCH = 100
# Where a tensor that is only written to may lie, as long as torch refuses; first as the op's other tensors.
OUTPUTS = ("", "R", "S1")

MeshOf = Callable[[tuple[int, ...]], DeviceMesh]


@dataclass(frozen=True)
class Case:
    """One signature of an op: arguments that it runs on, and where they lie.

    Args:
        arguments: of the op.
        layout: where its tensors lie.
        output: where those lie that it only writes to; where empty, as the layout says.
        refusal: what torch says where it does not support this, by the name of the exception and in one line.
    """

    arguments: Arguments
    layout: Layout
    output: str = ""
    refusal: str = ""

    def on(self, mesh: DeviceMesh) -> OpCall:
        """Make the tensors, and the call."""
        return self.arguments.placed(mesh, self.layout, self.output)


class Surveyed(NamedTuple):
    """A row, and the signature it is of, where there is one that can be run again."""

    row: AtlasRow
    case: Case | None = None


def survey(ops: Mapping[str, Any], mesh_of: MeshOf, plan: Plan = PLAN) -> Iterator[Surveyed]:
    """Measure ops, each in every layout that it is measured in."""
    for name, op in ops.items():
        arguments = find_arguments(op)
        if isinstance(arguments, str):
            outcome = Outcome.NO_KERNEL if "Could not run '" in arguments else Outcome.NO_ARGUMENTS
            yield Surveyed(AtlasRow(name, name, "", outcome, shortened(arguments)))
            continue
        seen = set()
        for case in cases_of(name, arguments, mesh_of):
            surveyed = _refused(name, case, mesh_of) if case.refusal else _measured(name, case, mesh_of, plan)
            if surveyed.row.signature not in seen:  # two layouts may place a tensor alike
                seen.add(surveyed.row.signature)
                yield surveyed


def surveyed_often(
    ops: Mapping[str, Any], mesh_of: MeshOf, clock: Callable[[], float] = time.monotonic
) -> list[Surveyed]:
    """Measure ops several times over: each signature until two visits agree."""
    end = clock() + VISITING_S
    surveyed = list(survey(ops, mesh_of))
    for _ in range(1, VISITS):
        surveyed = [_visited_again(one, mesh_of) for one in surveyed]
    for _ in range(VISITS, MAX_VISITS):
        surveyed = [
            _visited_again(one, mesh_of) if one.row.unconfirmed and clock() < end else one for one in surveyed
        ]
    return surveyed


def _visited_again(one: Surveyed, mesh_of: MeshOf) -> Surveyed:
    if one.case is None or not one.row.visits:
        return one
    visits = one.row.visits + _measured(one.row.op, one.case, mesh_of, PLAN).row.visits
    return Surveyed(replace(one.row, visits=visits), one.case)


def cases_of(name: str, arguments: Arguments, mesh_of: MeshOf) -> Iterator[Case]:
    """Try an op in each of its layouts, and give what runs, and what torch refuses."""
    for layout in layouts_of(name):
        refusals = []
        for output in OUTPUTS if arguments.outputs else OUTPUTS[:1]:
            case = Case(arguments, layout, output)
            try:
                case.on(mesh_of(layout.mesh)).run()
            except Exception as error:  # whatever torch says: these are arguments that plain tensors run on
                refusals.append(replace(case, refusal=shortened(first_line(error))))
            else:
                yield case
                break
        else:
            yield refusals[0]


def capture_case(case: Case, mesh: DeviceMesh, capture: AbstractContextManager[Any]) -> str:
    """Run a signature once in a capture, and give it as text."""
    call = case.on(mesh)
    label = signature_of(call.func, call.args, call.kwargs).full
    with capture:
        call.run()
    return label


def shortened(message: str) -> str:
    """Cut a message of torch's that would fill a page."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def _measured(name: str, case: Case, mesh_of: MeshOf, plan: Plan) -> Surveyed:
    results = TestResults()
    label = capture_case(case, mesh_of(case.layout.mesh), SignatureCapture(results, plan))
    measurements = {measurement.full_label: measurement for measurement in results.measurements()}
    row = functools.partial(AtlasRow, name, label, _place(label))
    if label not in measurements:
        parts = dict.fromkeys(each.op for each in measurements.values())
        message = f"into {', '.join(parts)}" if parts else "no op reaches DTensor"
        return Surveyed(row(Outcome.SPLIT, message), case)
    measurement = measurements[label]
    if not any(measurement.recorded()):
        message = shortened("; ".join(measurement.notes) or measurement.proof)
        return Surveyed(row(Outcome.NOT_REPEATED, message), case)
    return Surveyed(row(Outcome.MEASURED, visits=(measurement,)), case)


def _refused(name: str, case: Case, mesh_of: MeshOf) -> Surveyed:
    call = case.on(mesh_of(case.layout.mesh))
    label = signature_of(call.func, call.args, call.kwargs).full
    return Surveyed(AtlasRow(name, label, _place(label), Outcome.UNSUPPORTED, case.refusal))


def _place(label: str) -> str:
    return label.rpartition("@")[2]


def counted(surveyed: Sequence[Surveyed], mesh_of: MeshOf) -> Iterator[AtlasRow]:
    """Run every signature that can be run once more, on a miss, and count what that does."""
    for first in range(0, len(surveyed), BATCH):
        yield from _counted_batch(surveyed[first : first + BATCH], mesh_of)


def _counted_batch(surveyed: Sequence[Surveyed], mesh_of: MeshOf) -> Iterator[AtlasRow]:
    with StepCounter() as counter:
        caches = ShardingCaches()  # made where the counter sees them cleared
        for one in surveyed:
            if one.case is None or not one.row.visits:
                yield one.row
                continue
            call = one.case.on(mesh_of(one.case.layout.mesh))
            caches.clear()
            call.run()
            step = counter.lap()
            propagations = sum(1 + miss.nested for miss in step.missed)
            moves = tuple(_move(moved, call) for moved in step.redistributions)
            yield replace(one.row, counts=Counts(propagations, moves, step.collectives))


def _move(moved: Redistribution, call: OpCall) -> Move:
    source, target = "".join(moved.source), "".join(moved.target)
    names = (
        argument.name
        for argument in arguments_of(call.func, call.args, call.kwargs)
        if f"{moved.tensor}{source}" in _tensors(argument.value)
    )
    return Move(tuple(names), moved.tensor, source, target)


def _tensors(value: Any) -> list[str]:
    traits = map(tensor_traits, tree_leaves(value))
    return [tensor_text(tensor) for tensor in traits if tensor]
