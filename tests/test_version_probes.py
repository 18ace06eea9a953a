"""The probes of the page of versions run, on whichever torch is here, and answer by table and question."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.versions import probed
from tests.probes import NATIVE_CACHE, has, has_rule

pytestmark = pytest.mark.torch


def test_a_probe_answers_with_the_cache_that_has_to_be_cleared(tmp_path: Path) -> None:
    answers = probed(sys.executable, tmp_path, "-k", "test_capture or rules or argmax or most")
    assert answers["Ours"]["Captures: misses and hits, proved"] == "yes"
    assert int(answers["DTensor"]["Ops with a sharding rule"].replace(",", "")) > 100
    caches = answers["Caches"]
    assert caches["`add`, and most ops"] == ("native" if has(NATIVE_CACHE) else "python")
    assert (
        caches["`argmax`"] == "python"
        if has_rule("argmax.default")
        else caches["`argmax`"].startswith("no: ")
    )


@pytest.mark.long
def test_every_probe_answers(tmp_path: Path) -> None:
    answers = probed(sys.executable, tmp_path)
    assert {table: len(of) for table, of in answers.items()} == {"Ours": 13, "DTensor": 9, "Caches": 10}
    assert all(answer for of in answers.values() for answer in of.values())
    assert answers["Ours"]["Captures: misses and hits, proved"] == "yes"
