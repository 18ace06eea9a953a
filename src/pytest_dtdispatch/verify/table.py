"""Report on verified steps, and the limit of wrong ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, judge_count, unjudged
from pytest_dtdispatch.report.document import Document, Kind, Paragraph, Tone, View, paragraph
from pytest_dtdispatch.verify.model import LIMIT, Verified


def document(verified: Mapping[str, Sequence[Verified]], view: View) -> Document:
    """Render the verified steps of each test."""
    every = [(f"{test}: {each.name}", each) for test, of_test in verified.items() for each in of_test]
    blocks = tuple(block for title, each in every for block in _blocks(title, each, view))
    number, title = max(((len(each.wrong_ops), title) for title, each in every), default=(0, ""))
    worst = f"worst: {title}: {plural(number, 'wrong op')}" if number else ""
    return Document(blocks, "Each op of a step is compared with the same op on full tensors.", {}, worst)


def _blocks(title: str, verified: Verified, view: View) -> Iterator[Paragraph]:
    tone = Tone.BAD if verified.wrong_ops else Tone.GOOD if verified.compared else Tone.NOTICE
    took = f"{plural(verified.steps, 'step')}, {verified.seconds:.2f} s of comparing"
    yield paragraph(f"{title}: {verified.share}, {len(verified.wrong_ops):,} wrong ({took})", tone, hanging=1)
    if skipped := not_compared(verified):
        yield paragraph(f"not compared: {skipped}", indent=1, hanging=1)
    for note in view.listed(verified.notes):
        yield paragraph(note, Tone.NOTICE, indent=1, hanging=1)
    for text in view.listed([*map(str, verified.wrong_ops)], " wrong ops"):
        yield paragraph(text, Tone.BAD, indent=1, hanging=1)


def not_compared(verified: Verified) -> str:
    """Return the numbers of ops that were not compared, with the reasons; empty if there are none."""
    others = {"on plain tensors": verified.plain_ops, "collectives on plain tensors": verified.collectives}
    numbers = {**verified.skipped, **others}
    return "; ".join(f"{number:,} {reason}" for reason, number in numbers.items() if number)


def judge(verified: Verified, limits: Mapping[str, int]) -> Iterator[RowVerdict]:
    """Compare the number of wrong ops with its limit; steps without a compared op are not judged."""
    if LIMIT in limits and verified.compared:
        lines = dict.fromkeys(each.place.line_text for each in verified.wrong_ops)
        found = len(verified.wrong_ops)
        text = f"there are {found:,} ({verified.share})"
        yield judge_count(verified.name, LIMIT, limits[LIMIT], found, text, verified.wrong_ops, [*lines])
    elif LIMIT in limits:
        reason = "; ".join(filter(None, ("no op was compared", not_compared(verified))))
        yield unjudged(RowId("", verified.name), f"{LIMIT}={limits[LIMIT]}", reason, Verdict.MISSING)


KIND = Kind(
    Verified.kind,
    document,
    (LIMIT,),
    judge,
    (LIMIT,),
    title="Ops against full tensors",
    type=Verified,
    nothing="nothing was verified; call dtdispatch.verify(fn) in the test, "
    "or verify whole tests with --dtdispatch-all --dtdispatch-metric verify",
)
