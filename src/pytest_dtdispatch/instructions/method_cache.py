"""CPython's method cache: what decides which of its slots are shared, made anew."""

from __future__ import annotations

import ctypes

# From CPython 3.13 on a class has no more than 1,000 versions in a process, and then is not cached at all.
MOST_LAYOUTS = 600


class MethodCache:
    """Make CPython choose new slots of its method cache, by versions of types that it has not had.

    Source: ``PyType_Modified`` of CPython's stable interface, "Invalidate the internal lookup cache for the
    type and all of its subtypes". It tells CPython that ``object`` has changed, which it has not: every type
    then gets another version as soon as it is asked for a method.

    Example:
        >>> MethodCache().forget()
        True
    """

    def __init__(self, most_layouts: int = MOST_LAYOUTS) -> None:
        self._modified = ctypes.pythonapi.PyType_Modified
        self._modified.argtypes, self._modified.restype = (ctypes.py_object,), None
        self._left = most_layouts

    def forget(self) -> bool:
        """Forget all versions; false, and nothing is done, where there were too many in this process."""
        if not self._left:
            return False
        self._left -= 1
        self._modified(object)
        return True
