"""How tests are named in rows."""

from __future__ import annotations

import pytest


def row_nodeid(item: pytest.Item) -> str:
    """Name a test in its rows: its node id, or with --pyargs its module, wherever that is installed.

    Rows of an installed suite must have one name in every environment, or no two runs compare.
    """
    module = getattr(getattr(item, "module", None), "__name__", "")
    if not item.config.getoption("pyargs", False) or "." not in module:
        return item.nodeid
    _, separator, inside = item.nodeid.partition("::")
    return f"{module.replace('.', '/')}.py{separator}{inside}"
