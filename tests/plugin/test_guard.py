"""Exceptions in hooks of the plugin: a failed test, a usage error or a problem of the run."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.plugin import ending, pytest_benchmark, session
from pytest_dtdispatch.plugin.guard import MAKEREPORT, STARTS, UNGUARDED, guarded, problems

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@pytest.fixture
def config() -> Any:
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    return SimpleNamespace(
        stash=pytest.Stash(), pluginmanager=SimpleNamespace(get_plugin=lambda name: session), session=session
    )


def pytest_sessionfinish() -> None:
    raise ValueError("a bug\nof two lines")


def drive(hook: Callable[..., Generator[Any, Any, Any]], outcome: Any) -> Any:
    """Run a hook wrapper as pluggy does, around hooks that return or raise ``outcome``."""
    steps = hook()
    next(steps)
    resume = steps.throw if isinstance(outcome, BaseException) else steps.send
    with pytest.raises(StopIteration) as stopped:
        resume(outcome)
    return stopped.value.value


def wrapper(before: BaseException | None, after: BaseException | None, name: str) -> Any:
    def hook() -> Generator[None, Any, Any]:
        if before:
            raise before
        result = yield
        if after:
            raise after
        return result

    hook.__name__ = name
    return hook


def test_exception_fails_the_run(config: Any) -> None:
    assert guarded(pytest_sessionfinish, config)() is None
    assert config.session.exitstatus == pytest.ExitCode.TESTS_FAILED
    [problem] = problems(config)
    assert problem.startswith(
        "pytest_sessionfinish of pytest-dtdispatch raised ValueError: a bug (test_guard.py:"
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_wrapped_hooks_run(config: Any, when: str) -> None:
    error = OSError("full")
    before, after = (error, None) if when == "before" else (None, error)
    assert drive(guarded(wrapper(before, after, "pytest_terminal_summary"), config), "theirs") == "theirs"
    assert len(problems(config)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_exception_of_wrapped_hook_passes(config: Any, when: str) -> None:
    def hook() -> Generator[None, Any, Any]:
        if when == "before":
            raise OSError
        try:
            return (yield)
        finally:
            raise OSError

    hook.__name__ = "pytest_sessionfinish"
    steps = guarded(hook, config)()
    next(steps)
    theirs = RuntimeError("theirs")
    with pytest.raises(RuntimeError) as raised:
        steps.throw(theirs)
    assert raised.value is theirs
    assert theirs.__cause__ is None
    assert len(problems(config)) == 1


@pytest.mark.parametrize("outcome", ["passed", "failed", "skipped"])
def test_exception_fails_the_report(config: Any, outcome: str) -> None:
    report = pytest.TestReport("t.py::test", ("t.py", 0, "test"), {}, outcome, None, "call")  # type: ignore[arg-type]
    report.wasxfail = "known"
    hook = guarded(wrapper(None, KeyError("x"), "pytest_runtest_makereport"), config)
    assert drive(hook, report) is report
    assert report.outcome == "failed"
    assert "KeyError" in str(report.longrepr) + str(report.sections)
    assert not problems(config)


@pytest.mark.parametrize("name", sorted(STARTS))
def test_exception_before_tests_is_usage_error(config: Any, name: str) -> None:
    def hook() -> None:
        raise LookupError("no such sampler")

    hook.__name__ = name
    with pytest.raises(pytest.UsageError, match="LookupError: no such sampler"):
        guarded(hook, config)()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), pytest.exit.Exception("stop"), pytest.UsageError("no")]
)
@pytest.mark.parametrize("when", ["before", "after", "function"])
def test_intended_ends_pass(config: Any, error: BaseException, when: str) -> None:
    def function() -> None:
        raise error

    function.__name__ = "pytest_sessionfinish"
    if when == "function":
        with pytest.raises(type(error)):
            guarded(function, config)()
        return
    before, after = (error, None) if when == "before" else (None, error)
    hook = guarded(wrapper(before, after, "pytest_sessionfinish"), config)
    with pytest.raises(type(error)):
        drive(hook, None)
    assert not problems(config)


def raise_now(*args: object, **kwargs: object) -> None:
    raise ZeroDivisionError


def raise_late(*args: object, **kwargs: object) -> Generator[None, Any, None]:
    yield
    raise ZeroDivisionError


TESTS = """
import pytest
from pytest_dtdispatch.core.results import Count

@pytest.mark.parametrize("number", [1, 2])
def test_count(number):
    with pytest.raises(AssertionError):
        assert Count(number, 1, ["event"]) == 3

def test_deselected():
    pass
"""


GUARDED = [
    pytest.param(plugin, hook, id=f"{plugin.__name__}.{hook}")
    for plugin in (session.Session, ending.Ending, pytest_benchmark.Bridge)
    for hook in vars(plugin)
    if hook.startswith("pytest_") and hook not in UNGUARDED and "benchmark" not in hook
]


@pytest.mark.torch
@pytest.mark.parametrize(("plugin", "hook"), GUARDED)
def test_raising_hook_ends_no_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: type, hook: str
) -> None:
    from tests.plugin_runs import run, text_of

    original = vars(plugin)[hook]
    raises = raise_late if inspect.isgeneratorfunction(original) else raise_now
    monkeypatch.setattr(plugin, hook, functools.wraps(original)(raises))
    pytester.makepyfile(TESTS)
    result = run(pytester, "--dtdispatch", "-k", "count")
    assert "INTERNALERROR" not in text_of(result)
    assert "ZeroDivisionError" in text_of(result)
    if hook in STARTS:
        assert result.ret == pytest.ExitCode.USAGE_ERROR
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        outcomes = result.parseoutcomes()
        assert outcomes["errors"] == 4 if hook == MAKEREPORT else outcomes["passed"] == 2
