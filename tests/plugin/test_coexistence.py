"""Other plugins that are absent, disabled, or measure something themselves."""

from __future__ import annotations

import pytest

from tests.plugin_runs import ADD, ALONE, MEASURED, TEN_LINES, benchmarks_of, measure, run, text_of
from tests.probes import needs_plugin

pytestmark = [pytest.mark.torch, pytest.mark.slow]

needs_xdist = needs_plugin("xdist")
needs_codspeed = needs_plugin("pytest_codspeed")
ROW = "  add.Tensor(*@4 *"
NOTHING = "nothing was measured: "
SHORT = ("--codspeed-warmup-time=0", "--codspeed-max-time=0.1")
OF_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
PLAIN = ("-pno:cacheprovider", "-pno:hypothesispytest")


def test_measures_without_pytest_benchmark_or_terminal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES)
    measure(pytester, "-pno:benchmark", passed=1).stdout.fnmatch_lines(["*= dtdispatch =*", ROW])
    run(pytester, "-pno:benchmark").assert_outcomes(passed=1)
    for flags in ((), ("--dtdispatch-all",)):  # pytest-benchmark needs a terminal itself
        result = measure(pytester, "-pno:terminal", "-pno:benchmark", *flags)
        assert result.ret == pytest.ExitCode.OK
        assert "Traceback" not in text_of(result)


@pytest.mark.parametrize("plugin", ["logging", "capture"])
def test_measures_without_optional_pytest_plugins(pytester: pytest.Pytester, plugin: str) -> None:
    pytester.makepyfile(TEN_LINES)
    measure(pytester, f"-pno:{plugin}", passed=1).stdout.fnmatch_lines([ROW])


@needs_codspeed
def test_codspeed_run_measures_nothing_with_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES, test_theirs="def test_theirs(benchmark): benchmark(len, 'a')")
    flags = (*(option for option in ALONE if "codspeed" not in option), *MEASURED)
    result = pytester.runpytest_inprocess(*flags, "--benchmark-json=rows.json", "-kadd")
    result.stdout.fnmatch_lines(["codspeed: * (disabled, *", ROW])
    assert benchmarks_of(pytester.path / "rows.json")
    result = pytester.runpytest_inprocess(*flags, "--codspeed", *SHORT)
    result.assert_outcomes(passed=2)
    assert_reported_once_by_us(result, NOTHING + "pytest-codspeed measures this run")


@pytest.mark.long
@needs_xdist
def test_xdist_run_measures_nothing_with_one_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"{TEN_LINES}        assert not dtdispatch.enabled", test_plain="def test_a(): pass")
    result = pytester.runpytest_subprocess(*PLAIN, *MEASURED, "-n1", "--benchmark-json=rows.json")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2)
    assert_reported_once_by_us(result, NOTHING + "pytest-xdist runs tests in parallel")
    assert not benchmarks_of(pytester.path / "rows.json")


@needs_xdist
@pytest.mark.parametrize("flag", ["--dtdispatch-nproc", "torchrun"])
def test_workers_of_xdist_are_refused_on_ranks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    pytester.makeini("[pytest]\naddopts = -n2")
    pytester.makepyfile(TEN_LINES)
    for name, value in OF_TORCHRUN.items() if flag == "torchrun" else ():
        monkeypatch.setenv(name, value)
    flags = ("--dtdispatch-nproc=2",) * (flag != "torchrun")
    result = pytester.runpytest_subprocess(*PLAIN, *MEASURED, *flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text_of(result).strip().startswith(f"ERROR: -n 2 (pytest-xdist) does not work with {flag}: ")


RAISES = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_{hook}():
    raise ValueError("boom")
    yield
"""


@pytest.mark.parametrize("hook", ["sessionfinish", "terminal_summary"])
def test_results_are_written_before_errors_of_other_plugins(pytester: pytest.Pytester, hook: str) -> None:
    pytester.makepyfile(TEN_LINES)
    pytester.makeconftest(RAISES.format(hook=hook))
    result = measure(pytester, "--dtdispatch-export=csv:results.csv")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["*= dtdispatch =*", ROW])
    assert text_of(result).count("= dtdispatch =") == 1
    assert (pytester.path / "results.csv").read_text()


def test_our_section_survives_a_failed_benchmark_grouping(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEN_LINES, test_theirs="def test_theirs(benchmark): benchmark(len, 'a')")
    result = measure(pytester, "--benchmark-group-by=param:op")
    result.stdout.fnmatch_lines(["*= dtdispatch =*", ROW])
    result.stderr.fnmatch_lines(["*TypeError: 'NoneType' object is not subscriptable"])


@pytest.mark.long
@needs_xdist
def test_invalid_marker_is_reported_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.dtdispatch(round=1)\ndef test_bad(): pass\n")
    result = pytester.runpytest_subprocess(*PLAIN, "-n1", *MEASURED)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_*.py:2: marker dtdispatch has no keyword 'round'; valid: rounds, *"])
    assert "INTERNALERROR" not in text_of(result)


def test_disabled_plugin_leaves_no_trace(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = run(pytester, "-pno:dtdispatch", passed=1)
    assert "dtdispatch" not in text_of(result).replace("no:dtdispatch", "")
    assert run(pytester, "-pno:dtdispatch", "--dtdispatch").ret == pytest.ExitCode.USAGE_ERROR


def assert_reported_once_by_us(result: pytest.RunResult, line: str) -> None:
    """Like `plugin_runs.assert_reported_once`, but other plugins may show their own files."""
    assert sum(line in each for each in text_of(result).splitlines()) == 1
    assert "pytest_dtdispatch/" not in text_of(result)
    assert "INTERNALERROR" not in text_of(result)


def test_plugin_reading_every_attribute_changes_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import contextlib

        class Reading:  # like pytest 8.0 when it searches fixtures
            def pytest_plugin_registered(self, plugin):
                for name in dir(plugin):
                    with contextlib.suppress(BaseException):
                        getattr(plugin, name)

        def pytest_configure(config):
            config.pluginmanager.register(Reading())
        """
    )
    pytester.makepyfile(TEN_LINES)
    measure(pytester, "--dtdispatch-export=csv:rows.csv", passed=1)
    assert ADD in (pytester.path / "rows.csv").read_text()
