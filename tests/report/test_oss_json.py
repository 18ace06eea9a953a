"""Results as records of PyTorch's benchmark database."""

from __future__ import annotations

import json

from pytest_dtdispatch.core.forms import RECORDS, form_of
from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.report.oss_json import oss_json


def test_each_result_is_a_record_with_what_the_database_requires() -> None:
    results = [
        MetricValue('t.py::test_"mm"::mm', "dispatch_hit_ns", 6940),
        MetricValue("t.py::a::b", "collectives", 0),
    ]
    text = oss_json(results, {"device": "cpu", "threads": 1})
    assert form_of(text) == RECORDS
    assert json.loads(text) == [
        {
            "benchmark": {"name": "pytest-dtdispatch", "extra_info": {"device": "cpu", "threads": 1}},
            "model": {"name": result.name, "type": "dtensor dispatch"},
            "metric": {"name": result.metric, "benchmark_values": [result.value]},
        }
        for result in results
    ]
    [record] = json.loads(oss_json([MetricValue("t.py::cut", "collectives", 0, signature="the whole")], {}))
    assert record["model"]["extra_info"] == {"signature": "the whole"}
