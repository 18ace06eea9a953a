"""Names of modules, as a user's program knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

# What wraps a module and is no part of the names that the program gave.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


class ModuleNames:
    """Name modules from the outermost one that was called, which goes by its class.

    A module that is held under several names has the first. Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._roots: WeakKeyDictionary[Any, WeakKeyDictionary[Any, str]] = WeakKeyDictionary()

    def name(self, running: Sequence[Any]) -> str:
        """Name the innermost of the modules that run, given from there outwards.

        One that the outermost does not hold, as a graph of the compiler's, is part of the next one.
        """
        names = self._names_in(running[-1], running[0])
        return next(name for module in running if (name := names.get(module)))

    def known_name(self, running: Sequence[Any]) -> str:
        """Name it by the largest known root that has it: a checkpoint calls a part of that anew."""
        for module in running:
            if known := [names for names in self._roots.values() if names.get(module)]:
                return max(known, key=len)[module]
        return self.name(running)

    def _names_in(self, root: Any, module: Any) -> WeakKeyDictionary[Any, str]:
        """Return the names in a root, looked up anew where a module was added since."""
        names = self._roots.get(root)
        if names is None or module not in names:
            names = self._roots[root] = WeakKeyDictionary()
            for name, each in root.named_modules():
                names[each] = _cleaned(name) or type(_unwrapped(each)).__name__
            names.setdefault(module, "")  # it is not held there, and not looked for again
        return names

    def name_of_owner(self, parameter: Any) -> str:
        """Name the module of a parameter by the largest known root that has it; empty where none has."""
        for names in sorted(self._roots.values(), key=len, reverse=True):
            for module, name in list(names.items()):
                if any(each is parameter for each in module.parameters(recurse=False)):
                    return name
        return ""


def _cleaned(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _unwrapped(module: Any) -> Any:
    inner = next(
        (getattr(module, name) for name in WRAPPERS if name in vars(module).get("_modules", ())), None
    )
    return module if inner is None else _unwrapped(inner)
