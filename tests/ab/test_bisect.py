"""``dtdispatch bisect``: the search, and what it runs and says; with fake interpreters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_dtdispatch.ab.bisect_search import Between, BisectAnswer, search
from pytest_dtdispatch.cli import main
from tests.ab.fakes import ROW, calls, fake_python

STEP = "t.py::test_step::train"
TORCHES = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")


@pytest.mark.parametrize("count", range(2, 18))
def test_every_culprit_is_found_with_as_few_questions_as_there_can_be(count: int) -> None:
    for culprit in range(1, count):
        asked: list[int] = []

        def ask(n: int, culprit: int = culprit, asked: list[int] = asked) -> BisectAnswer:
            asked.append(n)
            return BisectAnswer.REGRESSED if n >= culprit else BisectAnswer.PASSED

        assert search(count, ask) == Between(culprit - 1, culprit)
        assert len(asked) <= math.ceil(math.log2(count - 1)) if count > 2 else not asked
        assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("missing", [{4}, {3, 4}, {5}, {4, 5}, {1, 2, 3, 4, 5, 6, 7}, {1, 7}])
@pytest.mark.parametrize("culprit", range(1, 9))
def test_versions_without_an_answer_are_gone_around(missing: set[int], culprit: int) -> None:
    def ask(n: int) -> BisectAnswer:
        if n in missing:
            return BisectAnswer.UNKNOWN
        return BisectAnswer.REGRESSED if n >= culprit else BisectAnswer.PASSED

    between = search(9, ask)
    assert between.passed < culprit <= between.regressed
    assert set(between.skipped) <= missing


def test_of_several_changes_one_is_found() -> None:
    answers = [BisectAnswer.REGRESSED if n in (2, 3, 6, 8) else BisectAnswer.PASSED for n in range(9)]
    between = search(9, answers.__getitem__)
    assert (answers[between.passed], answers[between.regressed]) == (
        BisectAnswer.PASSED,
        BisectAnswer.REGRESSED,
    )
    assert between.regressed == between.passed + 1


def numbers(misses: float = 0, hit: float = 60_000, local: float = 9_000) -> dict[str, dict[str, float]]:
    return {
        "counts": {f"{STEP}::misses_per_step": misses},
        "proofs": {f"{ROW}::never_hits": 0.0},
        "instructions": {f"{ROW}::hit": hit, f"{ROW}::local": local},
    }


def bisect(folder: Path, answers: Sequence[dict[str, dict[str, float]]], *more: str) -> int:
    pythons = [
        fake_python(folder, f"v{torch}", probe={"torch": f"{torch}+cpu"}, numbers=answer)
        for torch, answer in zip(TORCHES, answers, strict=True)
    ]
    return main(["bisect", *(word for python in pythons for word in ("--python", str(python))), *more])


@pytest.mark.parametrize("culprit", [1, 2, 3, 4])
def test_a_count_that_grew_is_found_by_counts(
    tmp_path: Path, culprit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(tmp_path, [numbers(misses=2 * (n >= culprit)) for n in range(5)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "torch 2.13.0: regressed: 1 row by counts"
    assert len(out) - 2 <= 2  # questions
    assert out[-1].startswith(f"first regressed: torch {TORCHES[culprit]}+cpu, build abc, Python 3.12.3, ")
    assert f"; torch {TORCHES[culprit - 1]} passed; by counts: {STEP}::misses_per_step 0 -> 2" in out[-1]
    assert Counter(calls(tmp_path))["v2.9.1"] == 4  # the first is counted twice, and never again


def test_instructions_are_asked_where_counts_are_equal_with_few_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(tmp_path, [numbers(hit=60_000 + 9_000 * (n >= 3)) for n in range(5)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "counts: torch 2.13.0 against 2.9.1: did not regress: 2 numbers"
    assert out[1] == "torch 2.13.0: regressed: 1 row by instructions"
    assert out[2:4] == ["torch 2.11.0: passed", "torch 2.12.1: regressed: 1 row by instructions"]
    assert f"by instructions: {ROW}::hit 60,000 -> 69,000 (+15.0 %)" in out[-1]
    counted = Counter(calls(tmp_path))
    assert counted == {"v2.9.1": 2 + 3, "v2.13.0": 2 + 3, "v2.11.0": 1, "v2.12.1": 3}


def test_a_version_without_the_row_is_skipped_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [numbers(misses=3 * (n >= 3)) for n in range(5)]
    del answers[2]["counts"][f"{STEP}::misses_per_step"]
    assert bisect(tmp_path, answers, "--metric", "counts") == 1
    out = capsys.readouterr().out.splitlines()
    missing = (
        f"torch 2.11.0: skipped: it has no {STEP}::misses_per_step: its test ran, and measured no such row"
    )
    assert missing in out
    assert out[-1].startswith("first regressed: torch 2.12.1+cpu") or "one of 2.11.0" in out[-1]
    del answers[3]["counts"][f"{STEP}::misses_per_step"]
    assert bisect(tmp_path, answers, "--metric", "counts") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("first regressed: one of 2.11.0, 2.12.1, which were skipped, or torch 2.13.0+cpu")
    assert "; torch 2.10.0 passed; " in last


def test_nothing_regressed_is_said_after_the_dearest_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(tmp_path, [numbers()] * 5, "--metric", "counts") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing to find: ")
    assert Counter(calls(tmp_path)) == {"v2.9.1": 2, "v2.13.0": 2}


def test_ends_that_are_not_comparable_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [numbers(), *[numbers(local=12_000)] * 4]
    assert bisect(tmp_path, answers, "--metric", "instructions") == 4
    out = capsys.readouterr().out
    assert "instructions: torch 2.13.0 against 2.9.1: not comparable: " in out
    assert "plain tensors shifted by +33.3 %" in out
    other = {"counts": {"t.py::other::x": 1.0}, "proofs": {}, "instructions": {}}
    assert bisect(tmp_path, [numbers(), *[other] * 4], "--metric", "counts") == 3
    assert "not comparable: no row is in both" in capsys.readouterr().out


def test_times_are_compared_side_by_side_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [
        fake_python(tmp_path, f"v{torch}", probe={"torch": torch}, hit=1.0 + 0.6 * (n >= 2))
        for n, torch in enumerate(TORCHES[:3])
    ]
    words = [word for python in pythons for word in ("--python", str(python))]
    assert main(["bisect", *words, "--metric", "time", "--pairs", "4", "--confirm", "6"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["torch 2.11.0: regressed: 1 row by time", "torch 2.10.0: passed"]
    assert out[-1].startswith("first regressed: torch 2.11.0, ")
    assert f"by time: {ROW}::hit " in out[-1]
    assert " us (+" in out[-1]
    assert Counter(calls(tmp_path)) == {"v2.9.1": 10 + 4, "v2.11.0": 10, "v2.10.0": 4}


def test_a_version_that_dies_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [numbers(misses=n // 2) for n in range(3)]
    pythons = [
        fake_python(
            tmp_path, f"v{n}", does="sys.exit(3)" if n == 1 else "", numbers=answer, probe={"torch": f"2.{n}"}
        )
        for n, answer in enumerate(answers)
    ]
    words = [word for python in pythons for word in ("--python", str(python))]
    assert main(["bisect", *words, "--metric", "counts"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith(f"torch 2.1: skipped: --python {pythons[1]}: exit status 3")
    assert "log: " not in out[1]
    assert out[-1].startswith("first regressed: one of 2.1, which were skipped, or torch 2.2")
