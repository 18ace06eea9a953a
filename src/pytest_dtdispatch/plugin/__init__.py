"""The pytest plugin. No other folder of this package imports pytest."""

from __future__ import annotations

pytest_plugins = ["pytest_dtdispatch.plugin.hooks"]  # for ``-p pytest_dtdispatch.plugin``


class PluginObject:
    """A plugin object whose properties are not read during its registration.

    pytest 8.0 reads every attribute of a registered object to find fixtures. Cached properties would be
    computed before the first test.

    Example:
        >>> class Counting(PluginObject):
        ...     total = 1
        ...
        ...     def pytest_runtest_logreport(self) -> None: ...
        >>> dir(Counting())
        ['pytest_runtest_logreport']
    """

    def __dir__(self) -> list[str]:
        """Return the names of the hooks."""
        return [name for name in super().__dir__() if name.startswith("pytest_")]
