"""Dispatch mode that compares each DTensor op with the same op on full tensors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from pytest_dtdispatch.core.checks import check_result
from pytest_dtdispatch.core.events import CodePlace, Phase
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.errors import first_line
from pytest_dtdispatch.lines.finder import LineFinder
from pytest_dtdispatch.replay.capture import ConversionCapture
from pytest_dtdispatch.replay.storages import keys_of
from pytest_dtdispatch.torchapi.calls import ConversionCall, OpCall
from pytest_dtdispatch.torchapi.collectives import collective_of
from pytest_dtdispatch.torchapi.compiler import is_tracing
from pytest_dtdispatch.torchapi.observe import Conversion
from pytest_dtdispatch.torchapi.ops import is_op, modes_disabled
from pytest_dtdispatch.torchapi.shards import (
    Full,
    NoValueError,
    is_fused_elsewhere,
    is_shared_by_ranks,
    shards_of,
)
from pytest_dtdispatch.torchapi.signatures import signature_of, signature_of_conversion
from pytest_dtdispatch.torchapi.tensors import (
    is_dtensor,
    is_group_fake,
    is_local_mode_open,
    is_tensor,
    mesh_among,
    storage_behind,
    tensors_in,
)
from pytest_dtdispatch.verify.model import Fault, Verified, WrongOp
from pytest_dtdispatch.verify.values import FullCall, are_close, fault_of

__tracebackhide__ = True  # a failing test shows its own line

T = TypeVar("T")
REAL_RANKS = "--dtdispatch-backend gloo --dtdispatch-nproc 2"
FLAGS = f"add --dtdispatch-backend local, or {REAL_RANKS}"
NOT_DEFINED = "without a defined result"


class Verifier(ConversionCapture):
    """Dispatch mode that compares each DTensor op, and each redistribution, with the same on full tensors.

    Expected results are computed from the actual arguments, so that a wrong value is reported once.

    Args:
        results: results of the test.
        ops: globs of op names; every op if empty.
        disagree: function that returns how ranks differ at a call; None if all are in this process.

    Attributes:
        last: signature and line of the op that was compared last.
    """

    def __init__(self, results: ResultStore, ops: Sequence[str] = (), disagree: Any = None) -> None:
        super().__init__(ops, results)
        self.last = "none"
        self._disagree: Callable[[str], str] | None = disagree
        self._lines = LineFinder(self.run_steps)
        self._is_simulated = False
        self._ranks: dict[Any, list[int]] = {}  # by simulated mesh
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._wrong: dict[Any, WrongOp] = {}
        self._notes: dict[str, None] = {}
        self._diverged = ""  # why ops are no longer compared; empty while ranks run the same ops
        self._reported: set[Any] = set()  # storages of tensors that no op is reported for again
        self._bases: dict[Any, set[Any]] = {}  # storages of its base, by storage of a view that is a copy
        self._lost: dict[Any, WrongOp] = {}  # writes to such views, by storage of the base
        self._comparing_s = 0.0

    def _open(self) -> None:
        super()._open()
        self._lock.contexts.enter_context(self._lines)

    def run_steps(self, step_fn: Callable[[], object], steps: int) -> None:
        """Run steps, and compare their ops."""
        __tracebackhide__ = True
        for _ in range(steps):
            self._lines.begin_step()
            check_result("verify", step_fn())

    def annotate(self, error: Any) -> None:
        """Add notes to an error of the program."""
        error.__notes__ = [*getattr(error, "__notes__", ()), f"verify: the last compared op: {self.last}"]
        if "invalid python storage" in str(error) and is_local_mode_open():
            error.__notes__.append(f"verify: FSDP2 does not run on simulated ranks: add {REAL_RANKS}")

    def result(self, name: str, steps: int = 1) -> Verified:
        """Return the result of this number of steps."""
        self._add_lost([key for key in self._lost if storage_behind(key) is not None])
        wrong, notes, seconds = tuple(self._wrong.values()), tuple(self._notes), self._comparing_s
        return Verified(
            name, steps, **self._counts, wrong_ops=wrong, skipped=self._skipped, notes=notes, seconds=seconds
        )

    # Ops and conversions of the program

    def on_plain_op(self, call: OpCall) -> Any:
        """Run an op on plain tensors, and count it unless a conversion or a compiler runs it."""
        if not (self.is_converting or is_tracing()) and call.tensors:
            self._counts["collectives" if collective_of(call.func) else "plain_ops"] += 1
        return call.run()

    def on_op(self, call: OpCall) -> Any:
        """Run an op, and compare it with the same op on the full values of its arguments."""
        if self.is_converting:
            return call.run()
        place, reason = self._lines.record(), self._reason_to_skip(call)
        op = "" if reason else str(signature_of(call))
        return self._verified(call.run, call.tensors, partial(self._compare_op, call), reason, op, place)

    def on_outermost(self, call: ConversionCall) -> Any:
        """Run a conversion, and compare the values of a redistribution."""
        run = partial(call.function, *call.args, **call.kwargs)
        if call.converter.kind is not Conversion.REDISTRIBUTE:
            return run()
        place, reason = self._lines.here(), self._reason_of_group()
        compare = partial(self._compare_redistribution, call)
        return self._verified(run, [call.tensor], compare, reason, call.name, place)

    def _reason_to_skip(self, call: OpCall) -> str:
        """Return why an op is not compared, to follow the number of such ops; empty if it is compared."""
        func = call.func
        if is_tracing():
            return "in compiled functions"
        if not is_op(func):
            return "higher-order operators"
        if torch.Tag.nondeterministic_seeded in func.tags:
            return "random"
        if func.namespace == "aten" and func.__name__.startswith(("empty", "new_empty", "resize", "set_")):
            return NOT_DEFINED
        if is_fused_elsewhere(func):
            return "that loss_parallel or context_parallel computes with another op"
        reason = "on meta" if call.is_on_meta else self._reason_of_group()
        # Torch would write to a tensor that simulated ranks share once for each rank.
        is_shared = self._is_simulated and any(map(is_shared_by_ranks, call.written))
        if is_shared and not all(map(is_shared_by_ranks, call.tensors)):
            return "that write to a tensor which simulated ranks share"
        return reason

    def _reason_of_group(self) -> str:
        self._is_simulated = is_local_mode_open()
        if is_group_fake():
            return f"on a fake process group, whose collectives move no data: {FLAGS}"
        return self._diverged

    # Comparisons, which the program does not notice

    def _verified(
        self, run: Callable[[], Any], tensors: list[Any], compare: Any, reason: str, op: str, place: CodePlace
    ) -> Any:
        """Run a call of the program, and compare its results unless there is a reason not to.

        Args:
            run: the call.
            tensors: tensors among its arguments.
            compare: function of their full values, the result, ``op`` and ``place`` that compares the result.
            reason: why it is not compared, if it is not.
            op: its signature.
            place: its source line.
        """
        self._counts["calls"] += 1
        if reason:
            self._skipped[reason] += 1
        arguments = None if reason else self._attempt(self._arguments, tensors, op, place)
        try:
            result = run()
        except Exception:
            if arguments is not None:
                self._skipped["that raise"] += 1
            raise
        if arguments is not None:
            self._attempt(compare, arguments, result, op, place)
        elif reason in ("", NOT_DEFINED):
            self._reported.update(*map(keys_of, tensors_in(result)))
        return result

    def _attempt(self, part: Callable[..., T], *args: Any) -> T | None:
        """Run a part of a comparison; return None if a tensor has no full value."""
        began_s = time.perf_counter()
        try:
            with modes_disabled(), torch.no_grad():
                return part(*args)
        except NoValueError as error:
            self._skipped[str(error)] += 1
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error):
                raise
            self._skipped[f"without memory for full values ({first_line(error)})"] += 1
        finally:
            self._comparing_s += time.perf_counter() - began_s
        return None

    def _arguments(self, tensors: Sequence[torch.Tensor], op: str, place: CodePlace) -> dict[int, Full]:
        """Return the full values of the arguments of an op before it runs, by id."""
        found = {}
        for tensor, shards in self._shards(tensors, f"{op}, at {place}"):
            keys = keys_of(tensor)
            self._add_lost(keys)
            fault, text, found[id(tensor)] = fault_of(tensor, shards)
            if fault:
                if self._reported.isdisjoint(keys):
                    if fault is Fault.RANKS and place.phase is not Phase.BACKWARD:  # maybe on purpose
                        self._notes[f"an argument of {op}, at {place}: {text}"] = None
                    else:
                        self._add(op, fault, f"an argument: {text}", place)
                self._reported |= keys
                raise NoValueError("with an argument that has no full value")
        return found

    def _compare_op(
        self, call: OpCall, arguments: dict[int, Full], result: Any, op: str, place: CodePlace
    ) -> None:
        """Compare the results of an op, and the arguments that it writes to, with those on full tensors.

        Views that share no memory with their base are recorded, and writes to such views.
        """
        full = FullCall(call, arguments)
        got, expected = full.leaves(result), full.run()
        for number, base in full.views:
            keys = keys_of(base)
            if is_dtensor(got[number]) and keys.isdisjoint(keys_of(got[number])):
                origins = keys.union(*(self._bases.get(key, ()) for key in keys))
                self._bases |= dict.fromkeys(keys_of(got[number]), origins)
        text = "the view that it writes to is a copy, as its base is sharded in the viewed dimension"
        for key in {key for each in full.written for key in keys_of(each)}:
            lost = WrongOp(op, Fault.LOST_WRITE, text, place)
            self._lost |= dict.fromkeys(self._bases.get(key, ()), lost)
        self._compare(got, expected, full.trials, op, place)

    def _compare_redistribution(
        self, call: ConversionCall, arguments: dict[int, Full], result: Any, _: str, place: CodePlace
    ) -> None:
        """Compare the full value of a redistributed tensor with that before, which must not change."""
        [(values, size)] = arguments.values()
        target = result[0] if isinstance(result, tuple) else result
        expected = Full(values.to(target.dtype), size)
        op = str(signature_of_conversion(call, result))
        # Without trials: only the order of a sum may differ.
        self._compare([target], [expected], lambda number: (), op, place)

    def _compare(
        self, got: Sequence[Any], expected: Sequence[Any], trials: Any, op: str, place: CodePlace
    ) -> None:
        """Compare the results of a call with those on full tensors."""
        if len(got) != len(expected):
            self._add(op, Fault.SHAPE, f"{len(got)} results instead of {len(expected)}", place)
        numbers: dict[int, int] = {}
        for number, (each, other) in enumerate(zip(got, expected, strict=False)):
            if is_tensor(each) and isinstance(other, Full):
                numbers.setdefault(id(each), number)
            elif self._is_simulated:  # simulated ranks have one number: that of `equal` is of any rank
                continue
            elif type(each) in (bool, int, float) and not are_close(each, other):
                self._add(op, Fault.VALUES, f"{each} instead of {other}", place)
        tensors = [got[number] for number in numbers.values()]
        for tensor, shards in self._shards(tensors, f"the results of {op}, at {place}"):
            number = numbers[id(tensor)]
            fault, text, _ = fault_of(tensor, shards, expected[number], partial(trials, number))
            keys = keys_of(tensor)
            if fault and (fault is not Fault.RANKS or self._reported.isdisjoint(keys)):
                self._add(op, fault, text, place)
            if fault in (Fault.WRAPPER, Fault.RANKS, Fault.SHAPE):
                self._reported |= keys
        self._counts["compared"] += 1
        self.last = f"{op}, at {place}"

    def _shards(self, tensors: Sequence[Any], at: str) -> Iterator[tuple[Any, Sequence[torch.Tensor]]]:
        """Yield each tensor once with its shards on all ranks; plain ones are on the mesh of the others."""
        if self._disagree and (text := self._disagree(at)):
            self._diverged = f"after ranks ran different ops ({text})"
            raise NoValueError(self._diverged)
        mesh = mesh_among(tensors)
        distinct = {id(each): each for each in tensors}.values()
        for own, group in grouped((mesh_among([each]) or mesh, each) for each in distinct).items():
            if self._is_simulated and own not in self._ranks:
                self._ranks[own] = own.mesh.flatten().tolist()  # takes 20 ms
            yield from zip(group, shards_of(group, own, self._ranks.get(own, ())), strict=True)

    def _add(self, op: str, fault: Fault, text: str, place: CodePlace) -> None:
        """Add a wrong op, or another call of one."""
        first = self._wrong.get((op, fault, place), WrongOp(op, fault, text, place, calls=0))
        self._wrong[op, fault, place] = replace(first, calls=first.calls + 1)

    def _add_lost(self, bases: Collection[Any]) -> None:
        """Add lost writes whose base is read, or is still alive at the end."""
        for lost in {self._lost.pop(key) for key in bases if key in self._lost}:
            self._add(lost.op, lost.fault, lost.difference, lost.place)
