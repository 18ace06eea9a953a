"""Run a case plainly and measured, and report differences that a program could observe."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.plugin.recorder import Recorder
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.timing import no_op
from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import NamingMode
from tests.probes import modes_add_detaches
from tests.sweep import observe
from tests.sweep.cases import Case, Sample, seed
from tests.sweep.programs import Program, Programs

PLAN = Plan(rounds=1, repeat=1, max_time_s=0.01, warmup=1)  # figures are not checked
Seen = dict[str, Any]  # observations of a program, by kind
Way = Callable[[Program], Any]


def finish(program: Program) -> Any:
    """Run the measured part of a program, and the rest."""
    result = program.measured(*program.inputs.args, **program.inputs.kwargs)
    return result, program.after(result)


def run_in_capture(program: Program) -> Any:
    """Run a program in a capture."""
    with SignatureCapture(ResultStore(), PLAN):
        return finish(program)


def run_as_call(program: Program) -> Any:
    """Measure the first part of a program as a call."""
    recorder = Recorder(Settings(), PLAN)

    def whole(*args: Any) -> Any:
        return program.measured(*args, **program.inputs.kwargs)

    result = recorder.call(whole, *program.inputs.args, name="case")
    return result, program.after(result)


# Results of these ops are uninitialized memory.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

MEASURED: dict[str, Way] = {"capture": run_in_capture, "call": run_as_call}


def observed(programs: Programs, number: int, way: Way, is_on_misses: bool = False) -> Seen:
    """Run a program and return its observations, without garbage collection until the end.

    If ``is_on_misses``, each op finds empty caches. The caches start empty: cached plans may carry state,
    such as the mask of an embedding.
    """
    program = programs.make()
    ShardingCaches().clear()
    gc.collect()
    gc.freeze()  # from here, the collector tracks only objects created by the program
    seed(number)
    seen, result = _watched(program, way, ShardingCaches().clear if is_on_misses else no_op)
    seen["random"] = observe.random_state()
    seen["alive"] = observe.living()
    seen.update(_seen_of(program, result))
    del program, result
    seen["alive after"] = observe.living()
    return seen


def _watched(program: Program, way: Way, before_each: Callable[[], object]) -> tuple[Seen, Any]:
    """Run a program under a mode, because a capture is also an open mode."""
    naming = NamingMode(before_each)
    error, result = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with naming:
                result = way(program)
        except Exception as raised:  # a measured run must raise the same error
            error = (type(raised).__name__, observe.without_addresses(str(raised)))
    output = [(w.category.__name__, observe.without_addresses(str(w.message))) for w in warned]
    ops = naming.names
    if modes_add_detaches():  # one detach per open mode: a measured run has one more
        ops = [op for op in ops if op != "aten.detach.default"]
    return {"error": error, "warnings": output, "ops": ops}, result


def _seen_of(program: Program, result: Any) -> Seen:
    inputs = tree_leaves((program.inputs.args, program.inputs.kwargs, program.later))
    values = [*inputs, *tree_leaves(result)]
    gradients = [observe.gradient(value) for value in values if isinstance(value, torch.Tensor)]
    seen = [observe.seen(value) for value in values]
    tensors = [one for one in seen if isinstance(one, dict)]
    return {
        "aliasing": observe.aliases([*values, *gradients]),
        "plain values": [one for one in seen if not isinstance(one, dict)],
        "values": [one["contents"] for one in tensors],
        "layouts": [one["layout"] for one in tensors],
        "versions": [one["versions"] for one in tensors],
        "autograd": [one["autograd"] for one in tensors],
        "gradients": [one["grad"] for one in tensors],
    }


@dataclass(frozen=True)
class Difference:
    """An observable difference between a measured and a plain run."""

    case: Case
    way: str
    kind: str
    plain: Any
    measured: Any


@dataclass
class Compared:
    """The result of comparing several cases.

    Args:
        cases: number of measured runs.
        without: number of cases by kind of observation that is not compared, because plain runs differ in it.
        differences: differences found.
    """

    cases: int = 0
    without: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


def compare(case: Case, sample: Sample, mesh: DeviceMesh, compared: Compared) -> None:
    """Run a case twice plainly, and measured in each way; record the differences.

    After a difference, the case runs plainly again, with each op on empty caches, as measuring leaves them.
    Observations in which two plain runs differ are not compared, nor live tensors if torch itself leaks them
    in plain runs. The number of warnings may be that of this run.
    """
    programs = Programs(case, sample, mesh)
    first, plain = (observed(programs, case.number, finish) for _ in range(2))
    contents = ("values", "plain values", "gradients")
    unsteady = {kind for kind in contents if first[kind] != plain[kind] or case.op in UNDEFINED}
    if plain["alive after"]:  # torch itself leaks objects in each call, and in each repetition
        unsteady |= {"alive", "alive after"}
    compared.without[" and ".join(sorted(unsteady)) or "nothing"] += 1
    for way, run in MEASURED.items():
        measured = observed(programs, case.number, run)
        compared.cases += 1
        kinds = [kind for kind in differing(plain, measured) if kind not in unsteady]
        if kinds:
            third = observed(programs, case.number, finish, is_on_misses=True)
            kinds = [kind for kind in kinds if kind not in differing(plain, third)]
            if not has_only_warnings_between(measured, plain, third):
                kinds.append("warnings")
        compared.differences += [Difference(case, way, kind, plain[kind], measured[kind]) for kind in kinds]


def has_only_warnings_between(measured: Seen, plain: Seen, on_misses: Seen) -> bool:
    """Return whether the number of warnings is between those of plain runs on hits and on misses."""
    found, some, others = (Counter[Any](seen["warnings"]) for seen in (measured, plain, on_misses))
    return some & others <= found <= some | others


def differing(plain: Seen, measured: Seen) -> list[str]:
    """Return the kinds of observations that differ; fewer live tensors than in the plain run are allowed."""
    kinds = [kind for kind in plain if not kind.startswith("alive") and plain[kind] != measured[kind]]
    return kinds + [kind for kind in ("alive", "alive after") if measured[kind] - plain[kind]]
