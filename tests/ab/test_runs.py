"""``dtdispatch aa`` and ``selftest`` with fake interpreters: what runs, what is printed, which status.

And windows of a pool: what is counted, and over how much.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_dtdispatch.ab.model import BASE, HEAD, Request, abba, dealt
from pytest_dtdispatch.ab.runs import TRIPPED, count_runs, count_screens
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.verdicts import Verdict
from tests.ab.fakes import calls, fake_python, processes_in

# Two pairs and two give p values that trip nothing; the rule is smaller, and all else as in a real run.
SMALL = ("--pairs", "4", "--confirm", "6", "--processes", "22")


def test_equal_processes_give_no_false_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pool.json"
    python = fake_python(tmp_path, "python")
    assert main(["aa", "--python", str(python), *SMALL, "--json", str(path)]) == 0
    out, _ = capsys.readouterr()
    assert "pool: 22 processes in " in out
    assert "screen of 4 pairs: 30 row comparisons in 15 windows of the pool" in out
    assert "tripped: 0 of 30, 0.000 % (95 % interval 0.000 to " in out
    assert "then 6 fresh ones for what tripped: 6 row comparisons in 3 windows" in out
    assert "regressed: 0 of 6, 0.000 %" in out
    assert processes_in(path) == 22


def test_a_pool_goes_on_where_it_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pool.json"
    fails = "if open(told['calls']).read().count('python') == 8: sys.exit(3)"
    python = fake_python(tmp_path, "python", does=fails)
    assert main(["aa", "--python", str(python), *SMALL, "--json", str(path)]) == 5
    assert f"go on with --resume {path}" in capsys.readouterr().err
    assert main(["aa", "--resume", str(path)]) == 0
    assert processes_in(path) == 22


def test_the_self_test_says_what_was_caught_and_how_it_was_injected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pool.json"
    python = fake_python(tmp_path, "python")
    main(["aa", "--python", str(python), *SMALL, "--json", str(path)])
    capsys.readouterr()
    ran = len(calls(tmp_path))
    assert main(["selftest", "--pool", str(path)]) == 0
    out, _ = capsys.readouterr()
    assert len(calls(tmp_path)) - ran == 2 * 4 + 1  # a pair for each share, and the steps
    assert "injected for real, one pair of processes each: median" in out
    for share, line in zip(
        ("5", "10", "15", "20"), out.split("injected for real")[1].splitlines()[1:], strict=False
    ):
        assert line.startswith(f"  +{share}%: miss +")
        assert "hit +" in line
        assert "local " in line
    assert "injected by multiplying one side of windows of the pool" in out
    assert "+5% caught: 0 of 6, 0.000 %" in out
    assert "+20% caught: 6 of 6, 100.000 %" in out
    assert "  caught: 1 of 1, 100.000 %" in out
    assert "  false alarms: 0 of 1, 0.000 %" in out


def test_the_self_test_fails_where_an_extra_miss_is_not_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = fake_python(tmp_path, "python", only={"misses": 0.0})
    assert main(["selftest", "--python", str(python), *SMALL]) == 1
    assert "failed: at least 95% of +15%, 99% of +20% and every extra miss" in capsys.readouterr().out


def test_a_pool_and_a_file_to_go_on_with_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", "--pool", "a.json", "--resume", "b.json"]) == 2
    assert "--pool and --resume: name one" in capsys.readouterr().err


def pool(count: int, noise: float = 0.02) -> list[dict[str, float]]:
    draw = random.Random(7)
    rows = {"a::hit": 7e3, "a::miss": 1e6, "a::local": 2e3}
    return [{row: ns * math.exp(draw.gauss(0, noise)) for row, ns in rows.items()} for _ in range(count)]


@pytest.mark.parametrize("pairs", [1, 2, 5, 10])
def test_each_pair_has_both_sides_and_each_second_pair_is_turned_round(pairs: int) -> None:
    order = abba(pairs)
    made = list(zip(order[::2], order[1::2], strict=True))
    assert all(set(pair) == {BASE, HEAD} for pair in made)
    assert all(one != other for one, other in pairwise(made))


def test_a_steady_drift_falls_on_both_sides_alike() -> None:
    base, head = dealt(range(20))
    assert sum(base) == sum(head)


def test_equal_processes_give_no_alarm_and_every_comparison_is_counted() -> None:
    counts = count_runs(pool(34), Request())
    assert (counts.windows, counts.rows, counts.apart) == (5, 10, 2)
    assert sum(counts.found.values()) == 10
    assert counts.found[str(Verdict.PASSED)] == 10


def test_a_slow_side_is_caught_in_every_window() -> None:
    counts = count_runs(pool(34), Request(), slowed_by=0.3)
    assert counts.found == {str(Verdict.REGRESSED): 10}


def test_a_screen_counts_what_trips_in_either_direction() -> None:
    screens = count_screens(pool(12), Request(), slowed_by=0.3)
    assert (screens.windows, screens.rows, screens.apart) == (3, 6, 2)
    assert screens.found[TRIPPED] == 6
    assert count_screens(pool(12), Request(), slowed_by=-0.3).found[TRIPPED] == 6
    assert count_screens(pool(12), Request()).found[TRIPPED] == 0


def test_a_pool_that_is_too_small_has_no_window() -> None:
    assert count_runs(pool(29), Request()).rows == 0
