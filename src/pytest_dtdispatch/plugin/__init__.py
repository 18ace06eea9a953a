"""The plugin: what pytest calls. Nothing else of ours imports pytest."""

pytest_plugins = ["pytest_dtdispatch.plugin.hooks"]  # for ``-p pytest_dtdispatch.plugin``
