"""Measure the cost of dispatching PyTorch ops on DTensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dtdispatch.api import DtDispatch as DtDispatch
    from pytest_dtdispatch.errors import DtDispatchError as DtDispatchError
    from pytest_dtdispatch.errors import DtDispatchWarning as DtDispatchWarning
    from pytest_dtdispatch.meshes.groups import fake_mesh as fake_mesh
    from pytest_dtdispatch.meshes.sharded import assert_sharded_tensor_equal as assert_sharded_tensor_equal
    from pytest_dtdispatch.watch.step_watch import StepWatch as StepWatch
    from pytest_dtdispatch.watch.time_capture import TimeCaptureMode as TimeCaptureMode
    from pytest_dtdispatch.watch.time_capture import Timing as Timing

# Loaded on first use: `import torch` takes a second, and pytest imports this package at every start.
_HOMES = {
    "DtDispatch": "pytest_dtdispatch.api",
    "DtDispatchError": "pytest_dtdispatch.errors",
    "DtDispatchWarning": "pytest_dtdispatch.errors",
    "StepWatch": "pytest_dtdispatch.watch.step_watch",
    "TimeCaptureMode": "pytest_dtdispatch.watch.time_capture",
    "Timing": "pytest_dtdispatch.watch.time_capture",
    "assert_sharded_tensor_equal": "pytest_dtdispatch.meshes.sharded",
    "fake_mesh": "pytest_dtdispatch.meshes.groups",
}
__all__ = [*_HOMES]


if not TYPE_CHECKING:  # with __getattr__, a type checker accepts every misspelled name as Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
