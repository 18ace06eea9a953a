"""Measure every op in its layouts, whatever torch says, and count what a miss does: ``dtdispatch atlas``."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.atlas.arguments import Arguments, find_arguments
from pytest_dtdispatch.atlas.atlas_file import record_of, record_text
from pytest_dtdispatch.atlas.inputs import GRID, Layout, layouts_of
from pytest_dtdispatch.atlas.model import MAX_VISITS, REPEAT, ROUNDS, VISITS, Atlas, AtlasRow, Counts, Outcome
from pytest_dtdispatch.atlas.outputs import Outputs
from pytest_dtdispatch.atlas.page import atlas_document
from pytest_dtdispatch.atlas.whole_page import whole_page
from pytest_dtdispatch.core.environment import cpu_model, load_text
from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.core.progress import tell
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.errors import DtDispatchError, first_line
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.op_call import OpCall, signature_of, tensor_text
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place, run_environment
from pytest_dtdispatch.report.markdown import document_text
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.happened import Redistribution
from pytest_dtdispatch.torchapi.ops import arguments_of, ops_with_a_rule, tree_leaves
from pytest_dtdispatch.torchapi.process_groups import collectives_write
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import tensor_traits

PLAN = Plan(rounds=ROUNDS, repeat=REPEAT, max_time_s=0.1, cold=True)
VISITING_S = 270  # seconds from the start, after which no signature is visited again for disagreement alone
MAX_MESSAGE = 240  # characters
# A counter collects garbage after each signature, the slower the more has come since it was entered.
BATCH = 100
# Where a tensor that is only written to may lie, as long as torch refuses; first as the op's other tensors.
OUTPUTS = ("", "R", "S1")
# Collectives whose output the fake group of any torch defines.
WRITING = ("all_gather", "all_reduce", "broadcast")

MeshOf = Callable[[tuple[int, ...]], DeviceMesh]


def write_atlas(outputs: Outputs, globs: Sequence[str], command: str) -> Atlas:
    """Measure ops, and write a short page in Markdown, one of HTML with every row, and the data."""
    with _quiet_torch():
        atlas = Atlas(
            rows=_rows(globs),
            environment=run_environment(GRID, "cpu", "fake"),
            cpu=cpu_model(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            python=platform.python_version(),
            date=datetime.date.today().isoformat(),
            command=command,
            load=load_text(),
        )
    write_whole(outputs.data, record_text(record_of(atlas)))
    write_whole(outputs.page, document_text(atlas_document(atlas, outputs.whole.name)))
    write_whole(outputs.whole, whole_page(atlas))
    return atlas


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """No word of what torch logs and warns of while it refuses one op after the other."""
    level = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _rows(globs: Sequence[str]) -> tuple[AtlasRow, ...]:
    ops = {
        name: op
        for name, op in ops_with_a_rule().items()
        if not globs or any(fnmatchcase(name, glob) for glob in globs)
    }
    if not ops:
        raise DtDispatchError(f"--ops {' '.join(globs)}: no op that DTensor has a rule for has such a name")
    with StepCounter():
        pass  # where counts cannot be had, say so at once, and not when all is measured
    print(f"dtdispatch atlas: {many(len(ops), 'op')}", file=sys.stderr)
    with closing(ProcessGroupOwner()) as owner:
        owner.group(Place(GRID, "cpu", "fake"))

        mesh_of = functools.cache(lambda shape: owner.mesh(Place(shape, "cpu", "fake")))
        return tuple(counted(surveyed_often(ops, mesh_of), mesh_of))


@dataclass(frozen=True)
class Case:
    """One signature of an op: arguments that it runs on, and where they lie.

    Args:
        arguments: of the op.
        layout: where its tensors lie.
        output: where those lie that it only writes to; where empty, as the layout says.
        refusal: what torch says where it does not support this, by the name of the exception and in one line.
        outcome: what came of it, where torch refuses it.
    """

    arguments: Arguments
    layout: Layout
    output: str = ""
    refusal: str = ""
    outcome: Outcome = Outcome.UNSUPPORTED

    def on(self, mesh_of: MeshOf) -> OpCall:
        """Make the tensors, and the call."""
        return self.arguments.placed(mesh_of(self.layout.mesh), self.layout, self.output)


class Surveyed(NamedTuple):
    """A row, and the signature it is of, where there is one that can be run again."""

    row: AtlasRow
    case: Case | None = None


def survey(ops: Mapping[str, Any], mesh_of: MeshOf, plan: Plan = PLAN) -> Iterator[Surveyed]:
    """Measure ops, each in every layout that it is measured in."""
    for number, (name, op) in enumerate(ops.items(), 1):
        tell("op {} of {}: {}", number, len(ops), name)
        arguments = find_arguments(op)
        if isinstance(arguments, str):
            outcome = Outcome.NO_KERNEL if "Could not run '" in arguments else Outcome.NO_ARGUMENTS
            yield Surveyed(AtlasRow(name, name, "", outcome, shortened(arguments)))
            continue
        seen = set()
        for case in cases_of(name, arguments, mesh_of):
            row = _measured(name, case, mesh_of, plan)
            if row.signature not in seen:  # two layouts may place a tensor alike
                seen.add(row.signature)
                yield Surveyed(row, case if row.visits else None)


def surveyed_often(
    ops: Mapping[str, Any], mesh_of: MeshOf, clock: Callable[[], float] = time.monotonic
) -> list[Surveyed]:
    """Measure ops several times over: each signature until two visits agree."""
    end = clock() + VISITING_S
    surveyed = list(survey(ops, mesh_of))
    for visit in range(1, MAX_VISITS):
        for index, (row, case) in enumerate(surveyed):
            tell("visit {} of {}, signature {} of {}", visit + 1, MAX_VISITS, index + 1, len(surveyed))
            if case and (visit < VISITS or (row.unconfirmed and clock() < end)):
                visits = row.visits + _measured(row.op, case, mesh_of, PLAN).visits
                surveyed[index] = Surveyed(replace(row, visits=visits), case)
    return surveyed


def cases_of(name: str, arguments: Arguments, mesh_of: MeshOf) -> Iterator[Case]:
    """Try an op in each of its layouts, and give what runs, and what torch refuses."""
    for layout in layouts_of(name):
        refused = []
        for output in OUTPUTS if arguments.outputs else OUTPUTS[:1]:
            case = Case(arguments, layout, output and output + "R" * (len(layout.mesh) - 1))
            try:
                case.on(mesh_of).run()
            except Exception as error:  # whatever torch says: these are arguments that plain tensors run on
                refused.append((case, error))
            else:
                yield case
                break
        else:
            yield _refused(*refused[0], mesh_of)


def _refused(case: Case, error: Exception, mesh_of: MeshOf) -> Case:
    """Say what torch refuses: where a collective left its output as it was, perhaps what lay in memory."""
    unknown = not collectives_write() and _leaves_output(case.on(mesh_of))
    outcome = Outcome.UNDEFINED if unknown else Outcome.UNSUPPORTED
    return replace(case, refusal=shortened(first_line(error)), outcome=outcome)


def _leaves_output(call: OpCall) -> bool:
    """Tell whether a call starts a collective that has an output of its own, all_gather excepted."""
    with StepCounter() as counter:
        with suppress(Exception):  # as it did before
            call.run()
        return any(name not in WRITING for name, _ in counter.lap().collectives)


def shortened(message: str) -> str:
    """Cut a message of torch's that would fill a page."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def _measured(name: str, case: Case, mesh_of: MeshOf, plan: Plan) -> AtlasRow:
    call = case.on(mesh_of)
    label = signature_of(call.func, call.args, call.kwargs).full
    row = functools.partial(AtlasRow, name, label, label.rpartition("@")[2])
    if case.refusal:
        return row(case.outcome, case.refusal)
    results = TestResults()
    try:
        with SignatureCapture(results, plan):
            call.run()
    except Exception as error:  # it ran before: what a collective leaves undefined differs from call to call
        outcome = Outcome.NOT_REPEATED if collectives_write() else Outcome.UNDEFINED
        return row(outcome, shortened(first_line(error)))
    measurements = {measurement.full_label: measurement for measurement in results.measurements()}
    if label not in measurements:
        parts = dict.fromkeys(each.op for each in measurements.values())
        return row(Outcome.SPLIT, f"into {', '.join(parts)}" if parts else "no op reaches DTensor")
    measurement = measurements[label]
    if not any(measurement.recorded()):
        message = shortened("; ".join(measurement.notes) or measurement.proof)
        return row(Outcome.NOT_REPEATED, message)
    return row(Outcome.MEASURED, visits=(measurement,))


def counted(surveyed: Sequence[Surveyed], mesh_of: MeshOf) -> Iterator[AtlasRow]:
    """Run every signature that can be run once more, on a miss, and count what that does."""
    for first in range(0, len(surveyed), BATCH):
        with StepCounter() as counter:
            caches = ShardingCaches()  # made where the counter sees them cleared
            for index, one in enumerate(surveyed[first : first + BATCH], first + 1):
                tell("counting, signature {} of {}", index, len(surveyed))
                if one.case is None:
                    yield one.row
                    continue
                call = one.case.on(mesh_of)
                caches.clear()
                try:
                    call.run()
                except Exception:  # as in a visit
                    yield one.row
                    continue
                finally:
                    step = counter.lap()
                propagations = sum(1 + miss.nested for miss in step.missed)
                moves = tuple(_move_text(moved, call) for moved in step.redistributions)
                yield replace(one.row, counts=Counts(propagations, moves, step.collectives))


def _move_text(moved: Redistribution, call: OpCall) -> str:
    """Write what is moved by the names of the arguments that it may be: none of an intermediate result."""
    source, target = "".join(moved.source), "".join(moved.target)
    names = []
    for argument in arguments_of(call.func, call.args, call.kwargs):
        tensors = map(tensor_traits, tree_leaves(argument.value))
        if f"{moved.tensor}{source}" in [tensor_text(tensor) for tensor in tensors if tensor]:
            names.append(argument.name)
    return f"{' or '.join(names)} {moved.tensor} {source} -> {target}".strip()
