"""What is said of rows that are not proved, or noisy, and once of all that are proved."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State
from pytest_dtdispatch.report.document import Tone
from pytest_dtdispatch.report.notes import mark, noise, proved
from tests.rendered import lines_of

QUIET = Samples(State.MISS, (1_000,) * 20)
NOISY = Samples(State.MISS, (1_000, 5_000, 4_000) * 7)
REFUSED = Samples(State.HIT, (), (Refused("propagation ran again", 3),))
CALLS = Samples(State.CALL, (7,) * 20)


def measured(*samples: Samples) -> Measurement:
    return Measurement("a", "a", "a", "4", Contains.DISPATCH, 1, Figures(20, samples))


@pytest.mark.parametrize(
    ("samples", "text", "tone"),
    [
        ((QUIET,), "", Tone.GOOD),
        ((NOISY,), "noisy", Tone.NOTICE),
        ((CALLS,), "unpropagated", Tone.GOOD),
        ((), "not measured", Tone.NOTICE),
        ((QUIET, REFUSED), "propagation ran again (3x)", Tone.BAD),
        ((NOISY, REFUSED), "propagation ran again (3x), noisy", Tone.BAD),
    ],
)
def test_a_row_is_marked_where_it_is_not_proved_or_noisy(
    samples: tuple[Samples, ...], text: str, tone: Tone
) -> None:
    assert mark(measured(*samples)) == (text, tone)


def test_what_is_proved_is_said_once() -> None:
    rows = [measured(QUIET), measured(NOISY), measured(QUIET, REFUSED), measured(CALLS)]
    [line] = proved(rows)
    assert line.spans[0].text == "2 of 4 rows are proved by the cache counters"
    [line] = proved(rows[:2])
    assert line.spans[0].tone is Tone.GOOD
    assert not [*proved([])]


def test_noisy_rows_are_counted_with_their_states() -> None:
    local = Samples(State.LOCAL, NOISY.values)
    [line, *_] = lines_of(noise([measured(QUIET), measured(QUIET, local), measured(NOISY)]))
    assert line.startswith("2 of 3 rows are noisy (local, miss): their samples scatter by more than 100%")
    assert not noise([measured(QUIET)])
