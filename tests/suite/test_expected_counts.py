"""The suite's file of expected instruction counts is complete and readable by PyTorch's checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.gates.expected import read_expected
from pytest_dtdispatch.plugin.kinds import metric_names
from tests import pytorch_reader

[FILE] = (Path(__file__).parents[2] / "benchmarks").glob("instructions_*.csv")
UNPROPAGATED = {"to_from_local", "collectives", "custom_handler"}  # these paths have no miss


@pytest.mark.torch
def test_file_has_hit_and_miss_of_every_path() -> None:
    from pytest_dtdispatch.suite.paths import PATHS

    test = "pytest_dtdispatch/suite/test_ops.py::test_path"
    expected = {(f"{test}[{path}]::{path}", "instruction_count") for path in PATHS}
    for path in PATHS:
        if path.removeprefix("dtensor_dispatch_").removesuffix("_meta") not in UNPROPAGATED:
            expected.add((f"{test}[{path}]::{path}", "instruction_count_miss"))
    assert {(row.name, row.metric) for row in read_expected(FILE, metric_names()).rows} == expected


def test_pytorch_checker_reads_rows_with_documented_margin() -> None:
    rows = pytorch_reader.read_expected(FILE)
    assert len(rows) == 21
    assert {margin for _, margin in rows.values()} == {0.01}
