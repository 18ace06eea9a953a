"""Measure ops in their layouts: rows of the atlas, whatever torch says to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.atlas.arguments import Arguments, find_arguments
from pytest_dtdispatch.atlas.layouts import Layout, layouts_of
from pytest_dtdispatch.atlas.model import AtlasRow, Outcome
from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.op_call import OpCall, signature_of
from pytest_dtdispatch.measuring.plan import Plan

# Few samples of many signatures: the whole takes minutes.
PLAN = Plan(rounds=2, repeat=25, max_time_s=0.1, cold=True)
# A neighbour on the machine slows all samples of a visit: others minutes later show whether one did.
VISITS, MAX_VISITS = 2, 5
VISITING_S = 270  # seconds from the start, after which no signature is visited again for disagreement alone
MAX_MESSAGE = 240  # characters
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
    """

    arguments: Arguments
    layout: Layout
    output: str = ""

    def on(self, mesh: DeviceMesh) -> OpCall:
        """Make the tensors, and the call."""
        return self.arguments.placed(mesh, self.layout, self.output)


@dataclass(frozen=True)
class Refusal:
    """A signature that torch does not support.

    Args:
        case: the signature.
        message: what torch says, by the name of the exception and in one line.
    """

    case: Case
    message: str


@dataclass(frozen=True)
class Surveyed:
    """A row, and the signature it is of, where there is one that can be run again."""

    row: AtlasRow
    case: Case | None = None


def survey(ops: Mapping[str, Any], mesh_of: MeshOf, plan: Plan = PLAN) -> Iterator[Surveyed]:
    """Measure ops, each in every layout that it is measured in."""
    for name, op in ops.items():
        arguments = find_arguments(op)
        if isinstance(arguments, str):
            yield Surveyed(_row_without_arguments(name, arguments))
            continue
        seen = set()
        for case in cases_of(name, arguments, mesh_of):
            if isinstance(case, Refusal):
                surveyed = _refused(name, case, mesh_of)
            else:
                surveyed = _measured(name, case, mesh_of, plan)
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
    again = _measured(one.row.op, one.case, mesh_of, PLAN).row
    return replace(one, row=replace(one.row, visits=one.row.visits + again.visits))


def cases_of(name: str, arguments: Arguments, mesh_of: MeshOf) -> Iterator[Case | Refusal]:
    """Try an op in each of its layouts, and give what runs, and what torch refuses."""
    for layout in layouts_of(name):
        refusals = []
        for output in OUTPUTS if arguments.outputs else OUTPUTS[:1]:
            case = Case(arguments, layout, output)
            try:
                case.on(mesh_of(layout.mesh)).run()
            except Exception as error:  # whatever torch says: these are arguments that plain tensors run on
                refusals.append(Refusal(case, shortened(first_line(error))))
            else:
                yield case
                break
        else:
            yield refusals[0]


def capture_case(case: Case, mesh: DeviceMesh, capture: AbstractContextManager[Any]) -> str:
    """Run a signature once in a capture."""
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
    mesh = mesh_of(case.layout.mesh)
    label = capture_case(case, mesh, SignatureCapture(results, plan))
    measurements = {measurement.full_label: measurement for measurement in results.measurements()}
    place = _place(label)
    if label not in measurements:
        parts = dict.fromkeys(measurement.op for measurement in measurements.values())
        message = f"into {', '.join(parts)}" if parts else "no op reaches DTensor"
        return Surveyed(AtlasRow(name, label, place, Outcome.SPLIT, message), case)
    measurement = measurements[label]
    if not any(measurement.recorded()):
        return Surveyed(AtlasRow(name, label, place, Outcome.NOT_REPEATED, _why(measurement)), case)
    return Surveyed(AtlasRow(name, label, place, Outcome.MEASURED, visits=(measurement,)), case)


def _why(measurement: Measurement) -> str:
    return shortened("; ".join(measurement.notes) or measurement.proof)


def _refused(name: str, refusal: Refusal, mesh_of: MeshOf) -> Surveyed:
    call = refusal.case.on(mesh_of(refusal.case.layout.mesh))
    label = signature_of(call.func, call.args, call.kwargs).full
    return Surveyed(AtlasRow(name, label, _place(label), Outcome.UNSUPPORTED, refusal.message))


def _row_without_arguments(name: str, why: str) -> AtlasRow:
    outcome = Outcome.NO_KERNEL if "Could not run '" in why else Outcome.NO_ARGUMENTS
    return AtlasRow(name, name, "", outcome, shortened(why))


def _place(label: str) -> str:
    return label.rpartition("@")[2]
