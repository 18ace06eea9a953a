"""One unit for a whole column of times."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.report.scales import Scale, column_scale

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TIMES = st.floats(0, 1e13, allow_nan=False)


@pytest.mark.parametrize(
    ("values_ns", "name"),
    [
        ([], "us"),
        ([None], "us"),
        ([0.0], "us"),
        ([0.5], "ns"),
        ([1.0, 999.0], "ns"),
        ([1_000.0], "us"),
        ([951.0, 6_940.0, 15_573.0], "us"),
        ([4_100.0, 12_800.0, 2_959_700.0], "us"),
        ([999_999.0], "us"),
        ([484_900.0, 1_697_100.0, 61_133_400.0], "ms"),
        ([1.3e6, 3.7e8, None], "ms"),
        ([2e9, 3e9], "s"),
        ([-5_000.0, 2_000.0], "us"),
        ([None, 0.0, 7_000.0], "us"),
    ],
)
def test_a_column_is_in_the_unit_of_its_median(values_ns: list[float | None], name: str) -> None:
    assert column_scale(values_ns).name == name


@pytest.mark.parametrize(
    ("unit", "ns", "text"),
    [
        (Scale("ns", 1.0, 0), 749.4, "749"),
        (Scale("ns", 1.0, 0), 12_345.0, "12,345"),
        (Scale("us", 1e3, 1), 6_940, "6.9"),
        (Scale("us", 1e3, 1), 1_211_040, "1,211.0"),
        (Scale("us", 1e3, 1), -1_050, "-1.1"),
        (Scale("ms", 1e6, 2), 370_128_000, "370.13"),
        (Scale("ms", 1e6, 2), 0, "0.00"),
        (Scale("ms", 1e6, 2), None, "-"),
    ],
)
def test_a_time_is_written_in_its_unit(unit: Scale, ns: float | None, text: str) -> None:
    assert unit.text(ns) == text


@unhurried
@given(st.lists(st.one_of(st.none(), TIMES)))
def test_what_is_written_is_the_time_up_to_its_last_digit(values_ns: list[float | None]) -> None:
    unit = column_scale(values_ns)
    for value in values_ns:
        text = unit.text(value)
        if value is None:
            assert text == "-"
        else:
            half_a_digit = unit.ns * 0.5 * 10**-unit.decimals
            assert float(text.replace(",", "")) * unit.ns == pytest.approx(value, abs=half_a_digit * 1.001)


@unhurried
@given(st.lists(st.floats(1, 1e13), min_size=1))
def test_the_median_of_a_column_has_a_digit_before_the_point(values_ns: list[float]) -> None:
    assert sorted(values_ns)[len(values_ns) // 2] / column_scale(values_ns).ns >= 1


@pytest.mark.parametrize(
    ("values_ns", "texts"),
    [
        ([484_900, 1_697_100, 61_133_400], ["0.485", "1.697", "61.133"]),
        ([6_940, 12_800], ["6.94", "12.80"]),
        ([15_000, 22_400], ["15.0", "22.4"]),
        ([300_000, 412_345], ["300", "412"]),
        ([40, 12_000, 13_000], ["0.040", "12.000", "13.000"]),
    ],
)
def test_the_smallest_time_of_a_column_has_three_digits_or_three_decimals(
    values_ns: list[float], texts: list[str]
) -> None:
    unit = column_scale(values_ns)
    assert [unit.text(value) for value in values_ns] == texts
