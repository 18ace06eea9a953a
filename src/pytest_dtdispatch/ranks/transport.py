"""Measurements as plain data, to travel from rank to rank."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State, Unit


def plain_measurement(measurement: Measurement) -> dict[str, Any]:
    """Turn a measurement into plain data.

    Example:
        >>> one = Measurement("a", "a", "a", "4", Contains.DISPATCH, 1, Figures())
        >>> read_measurement(plain_measurement(one)) == one
        True
    """
    figures = measurement.figures
    return {
        "label": measurement.label,
        "full_label": measurement.full_label,
        "op": measurement.op,
        "mesh": measurement.mesh,
        "contains": str(measurement.contains),
        "calls": measurement.calls,
        "rounds": figures.rounds,
        "samples": [
            [str(one.state), list(one.values), _plain_refusals(one), asdict(one.unit)]
            for one in figures.samples
        ],
        "notes": list(figures.notes),
        "remarks": list(figures.remarks),
    }


def read_measurement(plain: Any) -> Measurement:
    """Read a measurement from plain data."""
    try:
        return Measurement(
            _text(plain["label"]),
            _text(plain["full_label"]),
            _text(plain["op"]),
            _text(plain["mesh"]),
            Contains(plain["contains"]),
            _whole(plain["calls"]),
            Figures(
                _whole(plain["rounds"]),
                tuple(_samples(*one) for one in plain["samples"]),
                tuple(map(_text, plain["notes"])),
                tuple(map(_text, plain["remarks"])),
            ),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no measurement: {error}") from None


def _plain_refusals(samples: Samples) -> list[list[Any]]:
    return [[refused.reason, refused.count] for refused in samples.refused]


def _samples(state: Any, values: Any, refused: Any, unit: Any) -> Samples:
    reasons = tuple(Refused(_text(reason), _whole(count)) for reason, count in refused)
    return Samples(State(state), tuple(map(_whole, values)), reasons, Unit(**unit))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text: {value!r}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"no count: {value!r}")
    return value
