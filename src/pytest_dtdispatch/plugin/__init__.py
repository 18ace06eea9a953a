"""The plugin: what pytest calls. Nothing else of ours imports pytest."""

from __future__ import annotations

pytest_plugins = ["pytest_dtdispatch.plugin.hooks"]  # for ``-p pytest_dtdispatch.plugin``


class PluginObject:
    """A plugin object whose properties are not read as it is registered.

    pytest 8.0 reads every attribute of what is registered, in search of fixtures. A value that is computed
    once would be the one from before the first test.

    Example:
        >>> class Counting(PluginObject):
        ...     total = 1
        ...
        ...     def pytest_runtest_logreport(self) -> None: ...
        >>> dir(Counting())
        ['pytest_runtest_logreport']
    """

    def __dir__(self) -> list[str]:
        """Name the hooks."""
        return [name for name in super().__dir__() if name.startswith("pytest_")]
