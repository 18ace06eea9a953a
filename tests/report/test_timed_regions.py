"""The table of a region that was timed call by call."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Figures, Refused, Samples, State
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.report.rows import timed_document
from pytest_dtdispatch.report.terminal import NO_EDGE, plain_text

ADD = Signature("add.Tensor", ("f32[8,8]S0", "f32[8,8]S0"), (2, 4), "cpu")
SAME = Signature("is_same_size.default", ("f32[8,8]S0",), (4,), "cpu")
HITS = Samples(State.HIT, (10_000, 10_000, 12_000, 10_000, 10_000))


def add(miss_ns: int) -> Figures:
    return Figures(1, (Samples(State.MISS, (miss_ns,)), HITS))


def lines(timed: dict[Signature, list[Figures]]) -> list[str]:
    return plain_text(timed_document("mode", timed), NO_EDGE).splitlines()


def test_all_calls_of_a_signature_are_one_line_with_spread() -> None:
    misses = (2_000_000, 1_000_000, 1_000_000, 1_000_000, 1_500_000)
    head, title, row, proved, legend = lines({ADD: [add(miss) for miss in misses]})
    assert head.split() == ["signature", "calls", "miss", "ms", "+-%", "hit", "us", "+-%"]
    assert title == "mode (dispatch from below autograd)"
    assert row.startswith("  add.Tensor(f32[8,8]S0, f32[8,8]S0)@2x4 ")
    assert row.split()[-5:] == ["5", "1.000", "100", "10.00", "0"]
    assert proved.strip() == "1 of 1 rows are proved by the cache counters"
    assert all(f"{column}: " in legend for column in ("miss", "hit", "+-%"))


def test_what_is_not_proved_or_noisy_is_marked() -> None:
    refused = Figures(1, (Samples(State.MISS, (), (Refused("did not propagate", 1),)),))
    wild = [add(miss) for miss in (1_000, 9_000, 1_000, 90_000, 1_000)]
    [*_, first, second, proved, _] = lines({ADD: wild, SAME: [refused, refused]})
    assert first.split()[-1] == "noisy"
    assert second.endswith("did not propagate (2x)")
    assert second.split()[1:6] == ["2", "-", "-", "-", "-"]
    assert proved.strip() == "1 of 2 rows are proved by the cache counters"


def test_a_region_without_dtensors_says_so() -> None:
    assert lines({}) == ["nothing was timed: no op on DTensors ran in the region"]
