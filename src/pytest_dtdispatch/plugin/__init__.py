"""The pytest plugin. No other folder of this package imports pytest."""

from __future__ import annotations

pytest_plugins = ["pytest_dtdispatch.plugin.hooks"]  # for ``-p pytest_dtdispatch.plugin``
