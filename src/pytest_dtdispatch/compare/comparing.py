"""The method that compares variants, as it is where nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_dtdispatch.compare.claims import NOT_MEASURED, Compared
from pytest_dtdispatch.compare.model import Equal, Variants
from pytest_dtdispatch.core.metrics import row_key
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.errors import CompareError

USAGE = 'dtdispatch.compare({"dtensor": f, "plain": g})'


class Comparing:
    """What the object behind the fixture compares with."""

    def compare(
        self, variants: Mapping[str, Callable[[], Any]], *, equal: Equal | None = None, name: str = "compare"
    ) -> Compared:
        """Hold several ways to do the same against each other: first what they give, then what they cost.

        Each variant is called once for the test, in the order given, from the same random state. In every
        run its result is held against the first one's, leaf by leaf: bit for bit, DTensors by their full
        value. On a fake process group, whose collectives move no data, what this rank holds is compared.

        Where something is measured, variants then take turns, one block of calls each in every round. A
        block counts as its median, two variants are compared round by round, and they are told apart where
        the whole interval of their ratio (99.9 %) is more than 3 % from 1. As with :meth:`call`, nothing of
        the repetitions is left behind, and results and effects are those of one call of each.

        Args:
            variants: two or more callables without arguments, by names of your choice; the first is the one
                that the others are held against.
            equal: is given two results, with plain tensors in place of DTensors, the first variant's first.
                It returns whether they are equal, or raises an AssertionError as
                ``torch.testing.assert_close`` does.
            name: of the comparison; a row is ``name[variant]``.

        Returns:
            An entry for each variant: ``assert compared["plain"].faster_than("dtensor", by=0.2)``.
            Where nothing is measured ``faster_than`` holds.

        Raises:
            CompareError: there are fewer than two variants, or one takes arguments or cannot be called.
            UnequalError: a result differs from that of the first variant; says where, and by how much.
            CaptureError: the name is taken by another call of this test, or a capture is open.

        Example:
            >>> variants = {"power": lambda: 2**5, "shift": lambda: 1 << 5}
            >>> compared = dtdispatch.compare(variants)             # doctest: +SKIP
            >>> assert compared["shift"].faster_than("power")       # doctest: +SKIP
        """
        __tracebackhide__ = True
        _check(variants, equal, name)
        return self._compare(Variants(name, dict(variants), equal))

    def _compare(self, asked: Variants) -> Compared:
        """Call each variant once, and hold what they give against each other."""
        __tracebackhide__ = True
        from pytest_dtdispatch.compare.equality import call_and_hold

        call_and_hold(asked)
        return Compared(asked.name, tuple(asked.functions), why_not=NOT_MEASURED)


def _check(variants: object, equal: object, name: object) -> None:
    """Refuse what cannot be compared."""
    __tracebackhide__ = True
    if not isinstance(variants, Mapping):
        raise CompareError(f"compare({shown(variants)}): it takes callables by their names, as in {USAGE}")
    if not isinstance(name, str) or not name.strip():
        raise CompareError(f"compare(name={shown(name)}): a name is a text, and not empty")
    if len(variants) < 2:
        raise CompareError(f"compare() of {len(variants)} variants: it takes two at the least, as in {USAGE}")
    labels = [label for label in variants if isinstance(label, str) and label.strip()]
    for label, fn in variants.items():
        if label not in labels:
            raise CompareError(f"compare(): the name {shown(label)} of a variant is not a text, or is empty")
        _check_variant(label, fn)
    if len({*map(row_key, labels)}) < len(labels):
        raise CompareError("compare(): two variants have the same name, less the spaces at its ends")
    if equal is not None and not callable(equal):
        raise CompareError(f"compare(equal={shown(equal)}): it takes a function of two results")


def _check_variant(label: str, fn: Callable[[], Any]) -> None:
    """Refuse a variant that cannot be called as it is."""
    __tracebackhide__ = True
    from pytest_dtdispatch.measuring.guard import check_callable, required_arguments

    check_callable(f"compare: {label!r}", fn, None)
    if required := required_arguments(fn):
        raise CompareError(
            f"the variant {label!r} takes arguments ({', '.join(required)}), and compare() gives none: "
            f"wrap each, as in {{{label!r}: lambda: f(x)}}"
        )
