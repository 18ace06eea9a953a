"""Checks of the arguments of measuring methods."""

from __future__ import annotations

import inspect
import io
import weakref
from collections.abc import Callable
from operator import methodcaller
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast
from unittest.mock import NonCallableMock

from pytest_dtdispatch.core.text import ask, shown
from pytest_dtdispatch.errors import MeasurementError

__tracebackhide__ = True  # a failing test shows its own line

Setup = Callable[[], "tuple[Any, ...] | None"]
# Iterators over values that exist already, and proxies, which define every method.
ITERATORS_OVER_VALUES = (
    *weakref.ProxyTypes,
    *map(type, (iter(()), iter([]), reversed([]), iter(""), iter("\xe9"), iter(b""), iter(range(0)))),
    *map(type, (iter(range(2**99)), iter(set()), iter({}), iter({}.values()), iter({}.items()))),
)
COROUTINE = "a call only creates a coroutine, and runs none of its code: pass lambda: asyncio.run(step())"


def call_arguments(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    """Run the setup of a call, if any, and return the arguments of the call."""
    if setup is not None and not callable(setup):
        raise MeasurementError(f"setup={shown(setup)} is not callable: pass a function without arguments")
    replaced = setup() if setup else None
    if replaced is None:
        return args
    if not isinstance(replaced, tuple):
        valid = "a tuple of arguments, or None"
        raise MeasurementError(f"setup returned {shown(replaced)}: it must return {valid}")
    return replaced


def check_callable(method: str, fn: object, name: object) -> None:
    """Check that a call of ``fn`` runs its code, and that ``name`` is a string or None."""
    if not callable(fn):
        kind = type(fn).__name__
        raise MeasurementError(f"{method}(): a value of type {kind} is not callable: pass a function")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        why = "a call of a generator function runs none of its code"
        raise MeasurementError(f"{method}(): {why}: pass lambda: list(step())")
    if inspect.iscoroutinefunction(fn):
        raise MeasurementError(f"{method}(): {COROUTINE}")
    if name is not None and not isinstance(name, str):
        raise MeasurementError(f"{method}(name={shown(name)}): the name must be a string")


def check_result(method: str, result: object) -> None:
    """Reject a coroutine, a lazy iterator and a generator that has not started: their code did not run.

    Of the values of a tuple, list or dict, only those of Python's own types are rejected: an iterator of a
    library may be the state of the program. Only types are inspected: any attribute of an object may raise.
    """
    kind, value = type(result), cast("Any", result)
    if kind in (tuple, list, dict):
        for each in value.values() if kind is dict else value:
            if type(each).__module__ in ("builtins", "itertools"):
                _check_value(method, each)
    _check_value(method, result)


def _check_value(method: str, value: Any) -> None:
    kind = type(value)
    if issubclass(kind, CoroutineType):
        value.close()
    if issubclass(kind, (io.IOBase, NonCallableMock, *ITERATORS_OVER_VALUES)):
        return
    if hasattr(kind, "__await__") and not ask(methodcaller("done"), value, False):
        raise MeasurementError(f"{method}(): {COROUTINE}")
    is_lazy = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
    if issubclass(kind, GeneratorType):
        is_lazy = inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    if is_lazy:
        is_generator = issubclass(kind, (GeneratorType, AsyncGeneratorType))
        lazy = "a generator" if is_generator else f"an iterator of type {kind.__name__}"
        why = f"the result is {lazy}, whose code did not run"
        raise MeasurementError(f"{method}(): {why}: return a list of its values")


def callable_at(make: Callable[[int], Callable[[], Any]], size: int) -> Callable[[], Any]:
    """Return the callable that ``make`` returns for a size."""
    fn = make(size)
    if not callable(fn):
        valid = "a callable without arguments"
        raise MeasurementError(f"make({size}) returned {shown(fn)}: it must return {valid}")
    check_callable("scaling", fn, None)
    return fn


def check_steps(
    step: Callable[[], object], warmup: int, steps: int, name: str | None = None, method: str = "steps"
) -> None:
    """Check a step function and its numbers of warm-up and counted steps."""
    check_callable(method, step, name)
    check_count("warmup", warmup, 0, method)
    check_count("steps", steps, 1, method)
    mismatch = signature_mismatch(step)
    if mismatch:
        inputs = ", or pass inputs=[x, ...]" if method == "steps" else ""
        remedy = f"wrap it, as in dtdispatch.{method}(lambda: step(x)){inputs}"
        raise MeasurementError(f"the step {mismatch}, and {method}() passes none: {remedy}")


def check_count(keyword: str, value: object, minimum: int, method: str = "steps") -> None:
    """Check that a value is an integer of at least ``minimum``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        valid = f"a whole number of at least {minimum}"
        raise MeasurementError(f"{method}(): {keyword}={shown(value)} is not {valid}")


def signature_mismatch(function: Callable[..., object], *arguments: object) -> str:
    """Return the parameters that prevent a call with these arguments, as text; empty if the call is valid."""
    try:
        signature = inspect.signature(function)
    except Exception:  # a C function has no signature, and a user's object may raise
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        names = ", ".join(signature.parameters)
        return f"takes arguments ({names})" if names else "takes no arguments"
    return ""
