"""A function that runs in another thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_thread(body: Callable[[], object], name: str = "worker") -> list[BaseException]:
    """Run a function in a named thread, join it, and return its exception."""
    with ThreadPoolExecutor(1, name) as pool:
        error = pool.submit(body).exception()
    return [error] if error else []
