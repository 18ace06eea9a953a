"""What keeps a run from measuring, although it was asked to."""

from __future__ import annotations

import functools

import pytest


def why_not_measured(config: pytest.Config) -> str:
    """Say why nothing is measured in this run; empty where it is."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") != "no":
        return "pytest-xdist runs tests in parallel, where latencies mean nothing; run with -n0"
    codspeed = config.pluginmanager.get_plugin("codspeed_plugin")
    if getattr(codspeed, "is_codspeed_enabled", False):
        return "pytest-codspeed measures this run; leave out --codspeed"
    given = functools.partial(config.getoption, default=False)
    if given("benchmark_disable") and not given("benchmark_enable"):
        return "--benchmark-disable is given"
    if given("benchmark_skip") and not given("benchmark_only"):
        return "--benchmark-skip is given"
    return ""
