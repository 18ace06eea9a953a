"""Checks of custom results: every report and file must be able to write them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from pytest_dtdispatch.core.measurement import Measurement
from pytest_dtdispatch.core.plain_data import MAX_NUMBER, decode, encode
from pytest_dtdispatch.core.results import Count, Finding
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import MeasurementError, first_line
from pytest_dtdispatch.report.data import fields_data
from pytest_dtdispatch.report.document import Kind


def check_finding(kind: Kind, result: Finding) -> None:
    """Check that a result can be written, before the end of the session.

    Raises:
        MeasurementError: its name is not a string, a metric is not an int, or JSON cannot hold a value.
    """
    if not isinstance(result.name, str):
        raise MeasurementError(f"record(): the name {shown(result.name)} is not a string: pass one")
    title = f"record(): {kind.name} {shown(result.name)}"
    for metric in result.metrics():
        is_pair = isinstance(metric, (tuple, list)) and len(metric) == 2
        if not (is_pair and isinstance(metric[0], str) and _is_integer(metric[1])):
            valid = "a name and an int up to 2**63; convert the number with int() or round()"
            raise MeasurementError(f"{title}: metrics() has {shown(metric)}; valid: {valid}")
    for row in result.rows():
        check_written(row, Measurement, f"{title}: a row")
    try:
        parts = {"a field": [*(kind.data or fields_data)([result])]}
        parts["its advice"] = [*map(asdict, kind.advice(result))]
        parts["a field of its class"] = [encode(result)] if is_dataclass(result) else []
    except RecursionError:
        raise MeasurementError(f"{title} cannot be written: one of its values contains itself") from None
    except Exception as error:  # raised by a comparison or a copy of a field, or by the kind's functions
        raise MeasurementError(f"{title} cannot be written: {escape_controls(first_line(error))}") from error
    for part, data in parts.items():
        for where, value in _unwritable(data, ""):
            valid = "a number, a text, a list or a dict of these"
            raise MeasurementError(f"{title}: {where or part} is {shown(value)}; valid in JSON: {valid}")
    if kind.type is not None:
        check_written(result, kind.type, title)


def check_written(value: object, kind: type, title: str) -> None:
    """Check that a value has the types that its class declares, by which saved runs are read.

    Raises:
        MeasurementError: it is of another class, or one of its fields is of another type.
    """
    if not isinstance(value, kind):
        raise MeasurementError(f"{title} is {shown(value)}: it must be a {kind.__name__}")
    try:
        decode(kind, json.loads(json.dumps(encode(value))))
    except Exception as error:  # also raised by a comparison of one of its values
        reason = str(error) if isinstance(error, ValueError) else first_line(error)
        raise MeasurementError(f"{title} cannot be written: {escape_controls(reason)}") from None


def _is_integer(value: object) -> bool:
    return type(value) is int and abs(value) <= MAX_NUMBER


def _unwritable(value: Any, where: str) -> Iterator[tuple[str, object]]:
    """Yield the values that JSON cannot hold, with their fields; infinity is written as null."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _unwritable(each, f"{where}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _unwritable(each, where)
    elif isinstance(value, Enum):
        yield from _unwritable(value.value, where)
    elif not isinstance(value, (str, type(None))):
        is_number = type(value) in (float, Count) and not math.isnan(value)
        if not (is_number or type(value) is bool or _is_integer(value)):
            yield where, value
