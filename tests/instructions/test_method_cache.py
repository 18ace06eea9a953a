"""The method cache that is made anew: nothing but speed may change, and only so often."""

from __future__ import annotations

from pytest_dtdispatch.instructions.method_cache import MOST_LAYOUTS, MethodCache


class Base:
    def method(self) -> str:
        return "base"


class Derived(Base):
    pass


def test_methods_are_found_as_before() -> None:
    derived = Derived()
    for _ in range(3):
        assert MethodCache().forget()
        assert derived.method() == "base"
        assert isinstance(derived, Base)
        assert str(1) + repr([2]) == "1[2]"


def test_a_class_that_changes_is_still_noticed() -> None:
    derived = Derived()
    assert derived.method() == "base"
    MethodCache().forget()
    Derived.method = lambda self: "derived"  # type: ignore[method-assign]
    try:
        assert derived.method() == "derived"
    finally:
        del Derived.method
    assert derived.method() == "base"


def test_it_ends_before_cpython_runs_out_of_versions() -> None:
    cache = MethodCache(most_layouts=2)
    assert [cache.forget() for _ in range(4)] == [True, True, False, False]
    assert 0 < MOST_LAYOUTS < 1000
