"""Guards of hooks: an exception in a hook of this plugin never ends the session.

It fails the test whose report is created, stops a run that has not begun, or becomes a problem of the run,
which continues and fails. A run that does not measure imports only this module and those of hooks and
settings.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

Hook = TypeVar("Hook", bound=Callable[..., Any])

# Exceptions with which a hook ends the run on purpose.
PASSED = (
    *(KeyboardInterrupt, GeneratorExit),
    *(pytest.exit.Exception, pytest.UsageError, pytest.Session.Failed),
)
# Hooks before the first test: nothing is lost if the run does not begin.
STARTS = {
    *("pytest_load_initial_conftests", "pytest_cmdline_main", "pytest_configure"),
    *("pytest_collection_modifyitems", "pytest_runtestloop"),
}
MAKEREPORT = "pytest_runtest_makereport"
# pytest converts exceptions in these to failures of the test, and nothing follows pytest_unconfigure.
UNGUARDED = {"pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown", "pytest_unconfigure"}
_PROBLEMS = pytest.StashKey[list[str]]()


def problems(config: pytest.Config) -> list[str]:
    """Return a line for each exception in a hook of this run."""
    return config.stash.setdefault(_PROBLEMS, [])


def note_problem(config: pytest.Config, problem: str) -> None:
    """Record a problem that fails the run, even if its exit status is already determined."""
    problems(config).append(problem)
    session: Any = config.pluginmanager.get_plugin("session")
    if session is not None and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def register(config: pytest.Config, plugin: object, name: str) -> None:
    """Register a plugin object with guarded hooks."""
    for hook in dir(type(plugin)):
        if hook.startswith("pytest_") and hook not in UNGUARDED:
            vars(plugin)[hook] = guarded(getattr(plugin, hook), config)
    config.pluginmanager.register(plugin, name)


def guarded(hook: Hook, config: pytest.Config | None = None) -> Hook:
    """Return a hook that raises nothing but usage errors and interruptions.

    Args:
        hook: implementation of a hook, also as a generator.
        config: configuration that receives problems; None for hooks before the first test.
    """

    def handle(error: BaseException, result: Any = None) -> Any:
        problem = f"{hook.__name__} of pytest-dtdispatch raised {described(error)}"
        if hook.__name__ in STARTS or config is None:
            raise pytest.UsageError(problem) from None
        if hook.__name__ == MAKEREPORT and result is not None:
            fail_report(result, [problem])
        else:
            note_problem(config, problem)
        return result

    @functools.wraps(hook)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except PASSED:
            raise
        except BaseException as error:
            return handle(error)

    @functools.wraps(hook)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _guarded_steps(hook(*args, **kwargs), handle))

    return wrapper if inspect.isgeneratorfunction(hook) else function  # type: ignore[return-value]


def _guarded_steps(steps: Generator[Any, Any, Any], handle: Callable[..., Any]) -> Generator[Any, Any, Any]:
    """Run a hook wrapper, whose wrapped hooks run at its yield; their exceptions pass unchanged."""
    early = raised = result = None
    try:
        next(steps)
    except PASSED:
        raise
    except BaseException as error:
        early = error  # handled after the wrapped hooks
    try:
        result = yield
    except BaseException as error:
        raised = error
    try:
        if early is not None:
            raise early
        if raised is None:
            steps.send(result)
        else:
            steps.throw(raised)
    except StopIteration as stop:
        return stop.value
    except PASSED:
        raise
    except BaseException as error:
        if error is raised:
            raise
        result = handle(error, result)
    if raised is not None:
        raise raised
    return result


def described(error: BaseException) -> str:
    """Return the type and message of an error in one line, with the source line that raised it."""
    from pytest_dtdispatch.core.text import brief, escape_controls
    from pytest_dtdispatch.errors import first_line

    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{brief(escape_controls(first_line(error)))}{at}"


def fail_report(report: pytest.TestReport, lines: Sequence[str], section: str = "dtdispatch") -> None:
    """Mark a report as failed; one that has already failed gets a section."""
    text = "\n".join(lines)
    if report.outcome == "failed":
        report.sections.append((section, text))
        return
    report.outcome, report.longrepr = "failed", text
    if hasattr(report, "wasxfail"):
        del report.wasxfail
