"""Capture that measures the DTensor ops of a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.replay.call import ConversionCall
from pytest_dtdispatch.replay.dispatch_capture import ConversionCapture
from pytest_dtdispatch.replay.repeat import run_conversion, run_op, settled_conversion
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import modes_disabled
from pytest_dtdispatch.torchapi.propagator import PlanCaches
from pytest_dtdispatch.torchapi.signatures import signature_of, spec_notes
from pytest_dtdispatch.torchapi.tensors import group_backend, is_local_mode_open

__tracebackhide__ = True  # a failing test shows its own line


class SignatureCapture(ConversionCapture):
    """Capture that measures each signature of ops and conversions at its first call, and counts other calls.

    Args:
        results: store of the measurements, shared by the captures of a test.
        plan: rounds and time limit of each signature.
        ops: globs of op names; every op if empty.
    """

    def __init__(self, results: ResultStore, plan: Plan, ops: Sequence[str] = ()) -> None:
        super().__init__(ops, results)
        self._plan = plan
        self._plans = PlanCaches()

    def on_op(self, call: OpCall) -> Any:
        """Run the call, and measure it if its signature is new."""
        signature = signature_of(call)
        if self._results.count(signature):
            return call.run()
        self._begin(signature)
        notes = spec_notes(call.leaves)  # first: an op may resize its out=
        result, ran = run_op(call)
        figures = ran.measure(self._caches, self._plan)
        figures = replace(figures, notes=(*notes, *figures.notes))
        self._results.enter(signature, figures, group_backend(signature.device))
        return result

    def on_outermost(self, call: ConversionCall) -> Any:
        """Run a conversion, and measure it if its signature is new."""
        result, replay = run_conversion(call)
        self._uncaptured.update()
        if not self._is_selected(call.name):
            return result
        with modes_disabled():
            signature = call.signature(result)
        if self._results.count(signature):
            return result
        self._begin(signature)
        ran = settled_conversion(call, result, replay)
        figures = ran.measure(self._plans, self._plan)
        self._results.enter(signature, figures, group_backend(signature.device))
        self._uncaptured.update()
        return result

    def _begin(self, signature: Signature) -> None:
        """Report progress on a signature, and synchronize ranks."""
        if self._plan.agreement is not None:
            self._plan.agreement.sync(signature.full)
        self._results.is_simulated |= is_local_mode_open()
        show_progress("measuring {}", signature)
