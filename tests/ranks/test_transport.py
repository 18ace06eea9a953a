"""Measurements come back from JSON as they were; what is none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State
from pytest_dtdispatch.ranks.transport import plain_measurement, read_measurement

counts = some.integers(0, 10**12)
refused = some.builds(Refused, some.text(max_size=5), counts)
samples = some.builds(
    Samples, some.sampled_from(State), some.lists(counts).map(tuple), some.lists(refused).map(tuple)
)
texts = some.lists(some.text(max_size=5), max_size=2).map(tuple)
figures = some.builds(
    Figures,
    counts,
    some.lists(samples, max_size=3).map(tuple),
    texts,
    texts,
)
measurements = some.builds(Measurement, figures=figures, contains=some.sampled_from(Contains), calls=counts)
ONE = plain_measurement(Measurement("a", "a", "a", "4", Contains.DISPATCH, 1, Figures()))


@given(measurements)
def test_what_travels_arrives_as_it_was(measurement: Measurement) -> None:
    assert read_measurement(json.loads(json.dumps(plain_measurement(measurement)))) == measurement


@pytest.mark.parametrize(
    "changed",
    [
        {"label": 1},
        {"contains": "else"},
        {"calls": -1},
        {"calls": True},
        {"rounds": "1"},
        {"samples": [["miss", [1.5], []]]},
        {"samples": [["warm", [], []]]},
        {"samples": [["miss"]]},
        {"notes": [1]},
        {"notes": None},
    ],
    ids=str,
)
def test_what_is_no_measurement_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_measurement({**ONE, **changed})


@pytest.mark.parametrize("plain", [None, [], "text", {}])
def test_what_is_nothing_of_the_kind_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="no measurement"):
        read_measurement(plain)
