"""What the sides of a matrix are called: by their versions, as short as tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_dtdispatch.ab.model import Request, Side

_FORMS: tuple[Callable[[Side, Path], str], ...] = (  # the shortest first
    lambda side, python: side.torch.partition("+")[0],
    lambda side, python: side.torch,
    lambda side, python: f"{side.torch}, Python {side.python}",
    lambda side, python: environment_of(python).name,
    lambda side, python: str(environment_of(python)),
)


def headings(asked: Request, sides: Mapping[str, Side]) -> dict[str, str]:
    """Name each side: by its torch; where two have the same with its build, its Python, or by its folder.

    Example:
        >>> old, new = (Side("3.12.3", "0.1.0", torch, "", "") for torch in ("2.12.1+cpu", "2.13.0+cpu"))
        >>> headings(Request(pythons=("a", "b")), {"python-1": old, "python-2": new})
        {'python-1': '2.12.1', 'python-2': '2.13.0'}
    """
    paths = asked.interpreters
    names: dict[str, str] = {}
    for form in _FORMS:
        told = {name: form(side, Path(paths[name])) for name, side in sides.items() if name not in names}
        often = Counter([*told.values(), *names.values()])
        names |= {name: text for name, text in told.items() if text and often[text] == 1}
    return {name: names.get(name, paths[name]) for name in sides}


def environment_of(python: Path) -> Path:
    """Give the folder of an environment that an interpreter is of.

    Example:
        >>> environment_of(Path("envs/nightly/bin/python"))
        PosixPath('envs/nightly')
    """
    folder = python.parent
    return folder.parent if folder.name == "bin" else folder
