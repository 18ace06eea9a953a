"""User errors are reported in one line, without a traceback through the plugin."""

from __future__ import annotations

import pytest

from tests.plugin_runs import (
    ALONE,
    IMPORTS,
    MEASURED,
    TEN_LINES,
    assert_mistakes,
    assert_refused,
    assert_reported_once,
    measure,
    measure_source,
    rows,
    run,
    text_of,
)
from tests.probes import NATIVE_CACHE, needs

pytestmark = pytest.mark.torch

PLAIN = "\ndef test_plain(dtdispatch, device_mesh): pass\n"
# The next test starts with the original mode stack, and is measured.
THEN_CLEAN = """
def test_next(dtdispatch, device_mesh):
    assert not _get_current_dispatch_mode_stack()
    a = sharded(device_mesh)
    with dtdispatch.capture() as book:
        a + a
    assert len(book.measurements()) == 1
"""


def test_rank_without_other_ranks_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two ranks that cannot connect is not measured as a single rank."""
    pytester.makepyfile(PLAIN)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = "RANK=0 and WORLD_SIZE=2 in the environment, and no MASTER_ADDR, and no MASTER_PORT: start"
    assert_refused(run(pytester, "--dtdispatch"), message)
    run(pytester).assert_outcomes(passed=1)  # nothing is measured


# The body of a test and the error message that it causes.
MISTAKES_IN_MESHES = {
    '"2x"': "mesh='2x' is not a mesh shape: extents of at least 1 joined by x, such as",
    "(2, 2), backend='mpi'": "backend='mpi' is not one of auto, fake, gloo, nccl, local",
    "(2, 2), dim_names=('a',)": "mesh 2x2 has 2 dimensions, not ('a',)",
    "(2, 2), dim_names=5": "dim_names=5 is not a tuple of names",
    "(8,)": "mesh 8 needs 8 ranks, and the process group that is open has 4: open the",
    "(4,), backend='gloo', device='cpu'": "backend gloo needs a process for each of the 4 ranks of mesh 4",
}
MISTAKES_UNMEASURED_TOO = [
    ("dtdispatch.capture(len)", "capture() takes 1 positional argument but 2 were given"),
    ("dtdispatch.call(len, 'a', setup=5)", "setup=5 is not callable: pass a function without arguments"),
    ("dtdispatch.compile(abs, 1, others=[2])", "compile(): others=[2] is not a list of tuples of"),
    ("dtdispatch.compile(abs, 1, dynamic='yes')", "compile(): dynamic='yes' is not True, False or None"),
    ("dtdispatch.compile(abs, 1, backend=5)", "compile(): backend=5 is not a name or a function"),
    ("dtdispatch.scaling(abs, (8,))", "sizes=(8,) is not two or more whole numbers of at least 1 that"),
    ("dtdispatch.scaling(abs, max_exponent=0)", "MeasurementError: max_exponent=0 is not a number above 0"),
    ("dtdispatch.scaling(abs)", "make(64) returned 64: it must return a callable without arguments"),
    *(
        line
        for method in ("call", "steps", "scaling", "compile")
        for line in (
            (
                f"dtdispatch.{method}(a + a)",
                f"{method}(): a value of type DTensor is not callable: pass a function",
            ),
            (f"dtdispatch.{method}(lambda: 1, name=123)", f"{method}(name=123): the name must be a string"),
        )
    ),
]
MAKE = "def make(n): return lambda: None\ndtdispatch."
PAIR = "{'a': lambda: 1, 'b': lambda: 1}"
DIVIDED = "ZeroDivisionError: integer division or modulo"
MISTAKES = [
    (
        "with dtdispatch.capture():\n    with dtdispatch.capture(): pass",
        "MeasurementError: a capture inside a capture would be measured twice: close the capture",
    ),
    (
        "with dtdispatch.capture():  # here\n    Passing().__enter__()\n    Passing().__enter__()",
        "MeasurementError: Passing, Passing was opened inside the capture and never closed",
    ),
    *(
        (f"with dtdispatch.capture():\n    dtdispatch.{call}", f"{message}: close")
        for call, message in (
            ("call(len, 'a', name='n')", "call(name='n') inside a capture would be measured twice"),
            ("scaling(len, name='n')", "scaling(name='n') inside a capture would be measured twice"),
            (f"compare({PAIR})", "compare(name='compare') inside a capture would be measured twice"),
            ("compile(abs, 1)", "compile(name='abs') inside a capture would be measured twice"),
            ("steps(lambda: None)", "steps(name='step') inside a capture would be measured twice"),
        )
    ),
    *(
        (
            f"dtdispatch.steps(lambda: dtdispatch.{call}, name='train')",
            f"MeasurementError: {message} inside 'train', which is being counted, would change its counts",
        )
        for call, message in (
            ("steps(lambda: None)", "steps(name='step')"),
            ("capture()", "a capture"),
            ("call(int, name='n')", "call(name='n')"),
        )
    ),
    *(
        (body, f"MeasurementError: the name {name!r} is used by another call of this test")
        for body, name in (
            ("dtdispatch.call(len, 'a')\ndtdispatch.call(len, 'a')", "len"),
            ("for _ in range(2): dtdispatch.steps(lambda: None, name='train')", "train"),
            ("for _ in range(2): dtdispatch.budget(lambda: None, 1, 1, name='train')", "train"),
            ("dtdispatch.call(int, name='abs'); dtdispatch.compile(abs, 1)", "abs"),
            (f"{MAKE}call(make, 1); dtdispatch.scaling(make)", "make"),
            (f"{MAKE}call(len, '', name='make[8]'); dtdispatch.scaling(make)", "make"),
            (f"{MAKE}scaling(make, (1, 2)); dtdispatch.scaling(make, (4, 8))", "make"),
            (f"{MAKE}scaling(make, (1, 2)); dtdispatch.call(len, '', name='make[1]')", "make[1]"),
            (f"dtdispatch.call(int, name='mlp[b]'); dtdispatch.compare({PAIR}, name='mlp')", "mlp"),
        )
    ),
    ("dtdispatch.scaling(lambda n: lambda: 1 // 0)", DIVIDED),
    ("dtdispatch.compile(abs, a, backend='inductr')", "backend='inductr' is not one of torch"),
    ("dtdispatch.steps(lambda: {}['of the program'])", "KeyError: 'of the program'"),
    ("dtdispatch.steps(lambda x: 1 // x, inputs=[1, 0])", DIVIDED),
    ("dtdispatch.steps(lambda: None, steps=0)", "steps(): steps=0 is not a whole number of at least 1"),
    (
        "dtdispatch.steps(lambda x: x)",
        "MeasurementError: the step takes arguments (x), and steps() passes none",
    ),
    (
        "dtdispatch.steps(lambda x: x, inputs=8)",
        "MeasurementError: steps(): inputs=8 cannot be iterated over",
    ),
]


def test_factory_refuses_invalid_meshes(pytester: pytest.Pytester) -> None:
    tests = (
        f"def test_{n}(device_mesh, mesh_factory): mesh_factory({arguments})\n"
        for n, arguments in enumerate(MISTAKES_IN_MESHES)
    )
    result = measure_source(pytester, "".join(tests), failed=len(MISTAKES_IN_MESHES))
    for message in MISTAKES_IN_MESHES.values():
        assert_reported_once(result, message)


@pytest.mark.parametrize(
    ("flags", "mistakes"),
    [
        ((), MISTAKES_UNMEASURED_TOO),
        (MEASURED, [*MISTAKES_UNMEASURED_TOO, *MISTAKES]),
        ((*MEASURED, "--dtdispatch-metric=counts"), MISTAKES_UNMEASURED_TOO),
    ],
    ids=["unmeasured", "measured", "counted"],
)
def test_mistake_is_reported_at_its_line_without_leftovers(
    pytester: pytest.Pytester, flags: tuple[str, ...], mistakes: list[tuple[str, str]]
) -> None:
    assert_mistakes(pytester, mistakes, *flags)


# Captures that do not end properly

ENDS = f"""
def test_never_left(dtdispatch, a):
    dtdispatch.capture().__enter__()
    a + a

def test_fails_too(dtdispatch, device_mesh):
    dtdispatch.capture().__enter__()
    raise ValueError('beside it')

@pytest.mark.parametrize("leaves_open", [False, True])
def test_raises(dtdispatch, a, leaves_open):
    with dtdispatch.capture():
        a + a
        if leaves_open:
            Passing().__enter__()
        raise ValueError(f'of the test {{leaves_open}}')

def test_op_raises(dtdispatch, device_mesh):
    with dtdispatch.capture():
        sharded(device_mesh) @ torch.ones(3)

def test_call_raises(dtdispatch, device_mesh):
    dtdispatch.call(torch.mv, sharded(device_mesh), torch.ones(3), name='mv')
{THEN_CLEAN}"""


def test_unclosed_capture_is_reported_with_the_test_error(pytester: pytest.Pytester) -> None:
    result = measure_source(pytester, ENDS, "--benchmark-json=rows.json", passed=2, failed=5, errors=2)
    text, _, _ = text_of(result).partition("short test summary info")
    lines = (pytester.path / "test_it.py").read_text().splitlines()
    for line in (n for n, each in enumerate(lines, start=1) if "capture().__enter__()" in each):
        message = (
            f"{pytester.path / 'test_it.py'}:{line}: this capture was entered and never left; use it in a"
        )
        assert text.count(message) == 1
    for error in ("beside it", "of the test False", "of the test True"):
        assert text.count(f" ValueError: {error}") == 1
    assert text.count("got mixed torch.Tensor and DTensor") >= 2
    assert "pytest_dtdispatch/" not in text
    # Ops measured before the test failed, or while its capture was open, are still saved.
    for test in ("never_left", "raises[False]"):
        assert f"::test_{test}::" in (pytester.path / "rows.json").read_text()


def test_under_all_opened_modes_and_captures_are_errors(pytester: pytest.Pytester) -> None:
    source = f"""
from pytest_dtdispatch.watch.time_capture import TimeCaptureMode

def test_leaves_open():
    Passing().__enter__()

def test_captures():
    with TimeCaptureMode():
        pass
{THEN_CLEAN}"""
    result = measure_source(pytester, source, "--dtdispatch-all", failed=2, passed=1)
    assert_reported_once(result, "Passing was opened inside the capture and never closed")
    assert_reported_once(result, "MeasurementError: a capture is open already")
    result.stdout.fnmatch_lines([">       with TimeCaptureMode():"])


# Missing torch or missing features of torch


@needs(NATIVE_CACHE)
@pytest.mark.parametrize("flags", [(), ("--dtdispatch-all",)], ids=["fixture", "all"])
def test_unsupported_torch_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    # One of the two functions that clear and count the native cache is missing.
    monkeypatch.delattr("torch._C._clear_DTensor_sharding_propagator_cache")
    pytester.makepyfile(TEN_LINES if not flags else "def test_plain(): pass")
    result = measure(pytester, *flags, "--benchmark-autosave")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    message = "cannot be measured: it lacks the native sharding-propagation cache's clear function"
    assert_reported_once(result, message)


@pytest.mark.parametrize("flags", [(), ("--dtdispatch",)])
def test_fixture_without_torch_is_refused(pytester: pytest.Pytester, flags: tuple[str, ...]) -> None:
    pytester.makeconftest(
        """
        import sys

        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")

        sys.meta_path.insert(0, NoTorch())
        """
    )
    pytester.makepyfile(f"def test_mesh({'dtdispatch' if flags else 'device_mesh'}): pass")
    result = pytester.runpytest_subprocess(*ALONE, *flags)
    result.assert_outcomes(errors=1)
    message = "torch is not installed"
    assert_reported_once(result, f"{message}: a mesh and what is measured on it need torch 2.5 or later")
    assert ("nothing was measured: no test passed" in text_of(result)) == bool(flags)


def test_hostile_call_names_are_escaped_in_the_terminal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_evil(dtdispatch, a):
    dtdispatch.call(lambda: a + a, name="\\x1b[31mred\\rgone\\nline\\u202eevil")
    dtdispatch.call(lambda: a * a, name="long \\udcff" + "x" * 200)
    dtdispatch.steps(lambda: a + a, name="\\x1b[31mstep")
"""
    )
    file = pytester.path / "a\udcff.csv"  # a path that is not valid UTF-8
    flags = ("--benchmark-name=long", "--benchmark-group-by=param:op", f"--dtdispatch-export=csv:{file}")
    result, found = rows(pytester, *flags, passed=1)
    assert all(line.isprintable() for line in text_of(result).splitlines())
    written = r"\x1b[31mred\rgone\nline\u202eevil"
    assert written in text_of(result).partition("= dtdispatch =")[0]
    assert written in text_of(result).partition("= dtdispatch =")[2]
    assert any(f"::{written}::" in row["fullname"] for row in found)
    assert len(file.read_text(encoding="utf-8").splitlines()) > 4
    assert r"/a\udcff.csv" in text_of(result)
