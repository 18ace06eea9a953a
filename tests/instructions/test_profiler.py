"""Where instructions went, read from a dump as callgrind writes it."""

from __future__ import annotations

from pytest_dtdispatch.core.profiles import CalledFunction, Share, paths
from pytest_dtdispatch.instructions.profiler import LISTED, by_function, greatest, parse_dump

DUMP = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
positions: line
events: Ir
summary: 1234

ob=(1) /usr/bin/python3
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
16 400
+3 100
cfi=(2) call.c
cob=(2) /usr/lib/libc.so
cfn=(2) malloc
calls=2 50
* 90
-1 5
fi=(3) pycore.h
7 20

fl=(2)
fn=(2)
50 60
+1 30

fn=(3) at::native::add(at::Tensor const&, int (*)(int))'2
0 7
totals: 622
"""


def test_costs_belong_to_the_function_that_has_them_and_not_to_its_callers() -> None:
    costs = parse_dump(DUMP.splitlines(keepends=True))
    assert costs == {
        "_PyEval_EvalFrameDefault": 525,
        "malloc": 90,
        "at::native::add(at::Tensor const&, int (*)(int))": 7,
    }
    assert sum(costs.values()) == 622


def test_what_is_no_dump_has_no_costs() -> None:
    assert parse_dump([]) == parse_dump(["", "fn=", "calls=1", "hello", "12", "12 x", "+"]) == {}


def test_the_functions_with_most_instructions_are_listed() -> None:
    shares = greatest({f"f{n:02}": n for n in range(50)})
    assert len(shares) == LISTED == 20
    assert shares[0] == Share("f49", 49)
    assert shares[-1] == Share("f30", 30)


def test_a_function_that_calls_itself_is_one_function() -> None:
    lines = ["fn=(1) eval", "1 400", "cfn=(2) eval'2", "calls=1 5", "1 70", "fn=(2)", "5 70"]
    assert parse_dump(lines) == {"eval": 470}


CALLS = (
    CalledFunction(0, "call", 5),
    CalledFunction(1, "outer", -2),
    CalledFunction(2, "inner", 7),
    CalledFunction(1, "inner", 9),
)


def test_a_function_has_the_instructions_of_all_its_callers() -> None:
    assert by_function(CALLS) == {"call": 5, "outer": -2, "inner": 16}


def test_a_function_is_told_apart_by_who_called_it() -> None:
    assert dict(paths(CALLS)) == {("call",): 5, ("call", "outer", "inner"): 7, ("call", "inner"): 9}
