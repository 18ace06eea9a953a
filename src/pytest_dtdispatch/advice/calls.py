"""Rules on calls of ops at one line."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.advice.model import MIN_CALLS, Finding, Observed, alike, is_backward
from pytest_dtdispatch.steps.events import Miss, OpCalls


def _loops(observed: Observed) -> list[OpCalls]:
    """Return repeated calls at lines of the program. Autograd makes those of backward."""
    every = (each for each in observed.recorded.ops if each.replacement and each.count >= MIN_CALLS)
    return [each for each in every if each.is_alike and not (each.via or is_backward(each))]


def elementwise_loops(observed: Observed) -> Iterator[Finding]:
    """Advise if an op that writes to tensors runs on one after the other, as in an exponential average."""
    loops = (each for each in _loops(observed) if each.is_independent and observed.is_steady)
    written = (each for each in loops if not each.op.startswith("select."))
    single = (each for each in written if each.tensors == each.count)
    for same in alike(single, "place"):
        calls, count = sum(each.count for each in same), sum(each.count - 1 for each in same)
        names = " and ".join(each.replacement for each in same)
        seen = f"{', '.join(each.op for each in same)} called {calls} times"
        change = f"call {names} on lists of the tensors"
        yield Finding(same, seen, change, count, "op", ns=observed.ns_of(same))


def selected_in_a_loop(observed: Observed) -> Iterator[Finding]:
    """Advise if a loop selects the elements of one tensor, such as the experts of a layer."""
    for each in _loops(observed):
        if each.tensors == 1 and each.is_independent and each.op.startswith("select."):
            seen, change = f"select called {each.count} times on one tensor", f"call {each.replacement} once"
            yield Finding([each], seen, change, each.count - 1, "op", ns=observed.ns_of([each]))


def dimensions_of_one(observed: Observed) -> Iterator[Finding]:
    """Advise if ops miss in each step on a mesh with dimensions of size 1, which make planning longer."""
    slow = [one for one in observed.every(Miss) if 1 in one.mesh and max(one.mesh) > 1]
    if slow and all(step.misses for step in observed.steps):
        sizes = " x ".join(map(str, slow[0].mesh))
        seen = f"{len(slow)} misses on a mesh of {sizes}"
        change = "leave dimensions of size 1 out of the mesh"
        saves = f"makes {len(slow)} misses shorter"
        yield Finding(slow, seen, change, len(slow), "miss", saves=saves, claims=())
