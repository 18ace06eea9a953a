"""Results as the records of PyTorch's benchmark database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pytest_dtdispatch.core.metrics import MetricValue

BENCHMARK = "pytest-dtdispatch"
TEST_TYPE = "dtensor dispatch"


def oss_json(results: Iterable[MetricValue], environment: Mapping[str, str | int]) -> str:
    """Write a record for each result: benchmark, model, and a metric with its values.

    The database takes a list of such records, in which only names and values are required:
    https://github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra
    """
    records = [
        {
            "benchmark": {"name": BENCHMARK, "extra_info": dict(environment)},
            "model": {
                "name": result.name,
                "type": TEST_TYPE,
                **({"extra_info": {"signature": result.signature}} if result.signature else {}),
            },
            "metric": {"name": result.metric, "benchmark_values": [result.value]},
        }
        for result in results
    ]
    return json.dumps(records, indent=1) + "\n"
