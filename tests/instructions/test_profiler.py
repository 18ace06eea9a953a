"""Which functions the instructions of a call went to."""

from __future__ import annotations

from typing import Any

from pytest_dtdispatch.core.measurement import Profile, Share
from pytest_dtdispatch.instructions.profiler import LISTED, CallProfiler, greatest


def test_the_functions_with_most_instructions_are_listed() -> None:
    shares = greatest({f"f{n:02}": n for n in range(50)})
    assert len(shares) == LISTED == 20
    assert shares[0] == Share("f49", 49)
    assert shares[-1] == Share("f30", 30)


class ScriptedCallgrind:
    """A callgrind that counts what a test says, and 10 whenever it is read."""

    def __init__(self) -> None:
        self.spent = 0

    def toggle(self) -> int:
        return 0

    def total(self) -> int:
        self.spent += 10
        return self.spent


def test_a_function_has_its_own_instructions_of_all_its_calls() -> None:
    callgrind: Any = ScriptedCallgrind()

    def inner() -> None:
        callgrind.spent += 7

    def outer(*_: Any) -> None:
        callgrind.spent += 3
        inner()
        inner()

    profile = CallProfiler(callgrind)(outer, lambda: (1,), {})
    shares = {name.rpartition(".<locals>.")[2].split(" ")[0]: count for name, count in named(profile)}
    assert shares == {"inner": 14, "outer": 3}


def named(profile: Profile) -> list[tuple[str, int]]:
    return [(share.function, share.instructions) for share in profile.functions]
