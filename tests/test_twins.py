"""Advice followed on gloo ranks: results stay equal, and counts fall as promised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.advice.twins.model import Entry, Harm, Lookalike, Twin
from tests.advice.twins.table import LOOKALIKES, TABLE, TWINS
from tests.advice.two_ranks import Outcome, outcomes_of
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs(FSDP_WITHOUT_CUDA)]

SWEEP = [pytest.mark.long, pytest.mark.sweep]


def selected(entries: Iterable[Entry]) -> list[Any]:
    """Return quick entries for ``make test-long``, and all entries for ``make test-sweep``."""
    every = list(entries)
    quick = [pytest.param(entry, id=entry.id, marks=pytest.mark.long) for entry in every if entry.is_quick]
    return quick + [pytest.param(entry, id=f"{entry.id}, sweep", marks=SWEEP) for entry in every]


def test_table_has_distinct_entries() -> None:
    assert len({entry.id for entry in TABLE}) == len(TABLE) >= 60
    assert all(entry.followed is None for entry in LOOKALIKES if entry.harm is Harm.NOT_RUN)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcomes of all entries that the selected tests need."""
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    entries = [spec.params["entry"] for spec in callspecs if spec and "entry" in spec.params]
    ids = dict.fromkeys(entry.id for entry in entries)
    return outcomes_of(list(ids), tmp_path_factory.mktemp("twins") / "outcomes.json")


@pytest.fixture
def outcome(entry: Entry, outcomes: dict[str, Outcome]) -> Outcome:
    return outcomes[entry.id]


@pytest.mark.parametrize("entry", selected(TWINS))
def test_change_keeps_results(entry: Twin, outcome: Outcome) -> None:
    assert [ran.error for ran in outcome.programs.values()] == ["", ""]
    assert bool(outcome.difference) == entry.is_repair, outcome.difference


@pytest.mark.parametrize("entry", selected(TWINS))
def test_change_saves_the_count(entry: Twin, outcome: Outcome) -> None:
    before, after = (ran.count(entry.counted) for ran in outcome.programs.values())
    if entry.is_at_most:
        assert 0 < before - after <= entry.saves
    else:
        assert before - after == entry.saves


@pytest.mark.parametrize("entry", selected(twin for twin in TWINS if not twin.needs_times))
def test_rule_promises_the_count(entry: Twin, outcome: Outcome) -> None:
    assert outcome.programs["before"].promised(entry.rule) == entry.promised, outcome.programs[
        "before"
    ].advice
    assert not outcome.programs["after"].fires(entry.rule), outcome.programs["after"].advice


@pytest.mark.parametrize("entry", selected(LOOKALIKES))
def test_rule_does_not_fire(entry: Lookalike, outcome: Outcome) -> None:
    assert not outcome.programs["before"].error
    assert not outcome.programs["before"].fires(entry.rule), outcome.programs["before"].advice


@pytest.mark.parametrize("entry", selected(each for each in LOOKALIKES if each.harm is not Harm.NOT_RUN))
def test_following_does_harm(entry: Lookalike, outcome: Outcome) -> None:
    before, after = outcome.programs["before"], outcome.programs["after"]
    if entry.harm is Harm.RAISES:
        assert entry.error
        assert entry.error in after.error
        return
    assert after.error == ""
    if entry.harm is Harm.OTHER_RESULTS:
        assert outcome.difference
    else:
        assert after.count(entry.counted) >= before.count(entry.counted)
        assert after.count(entry.counted) > 0
