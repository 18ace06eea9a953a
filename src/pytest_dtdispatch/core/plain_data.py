"""Convert dataclasses to plain data and back, by the names of their types. Nothing is evaluated."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

TYPE = "type"
MAX_NUMBER = 2**63  # no counter or clock reaches it
MAX_OF_CLASS = 20  # entries of a list in exports, which programs read as a whole
# Number types with a minimum and a maximum.
Natural = Annotated[int, 0, MAX_NUMBER]
Size = Annotated[float, 0, math.inf]
Share = Annotated[float, 0, 2]  # fraction of a whole; above 1 by rounding
Indent = Annotated[int, 0, 99]


class _LocatedError(ValueError):
    """An invalid value whose message already names its innermost field."""


def encode(value: Any) -> Any:
    """Convert a value to plain data for ``json``.

    A dataclass becomes the name of its type and the fields whose values differ from their defaults.
    """
    if is_dataclass(value):
        plain = {TYPE: type(value).__name__}
        for field in fields(value):
            each = getattr(value, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if each is not default and each != default:
                plain[field.name] = encode(each)
        return plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def select(value: object, *names: str) -> dict[str, Any]:
    """Return attributes by name."""
    return {name: getattr(value, name) for name in names}


def left_out(lists: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Return how many entries of each list are not written; of each class, the largest are.

    Example:
        >>> left_out({"lines": range(22), "ops": [7]})
        {'lines': 2}
    """
    return {name: len(each) - MAX_OF_CLASS for name, each in lists.items() if len(each) > MAX_OF_CLASS}


def decode(kind: Any, plain: Any) -> Any:
    """Convert untrusted plain data to a value of a type.

    Args:
        kind: type, as in the annotation of a dataclass field.
        plain: data from ``json``.

    Raises:
        ValueError: a value does not have its type; the message names the value and its field.
    """
    origin, of = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        raise ValueError("no type is declared: annotate it, as int, str or tuple[float, ...]")
    if origin is Annotated:
        value = decode(of[0], plain)
        if not of[1] <= value <= of[2]:
            raise ValueError(f"{_named(plain)} in place of {of[1]} to {of[2]}")
        return value
    if origin in (UnionType, Union):
        return _read_union(of, plain)
    if origin is tuple:
        items = _checked(list, plain)
        kinds = of[:1] * len(items) if of[-1] is Ellipsis else of
        if len(items) != len(kinds):
            raise ValueError(f"{len(items)} items in place of {len(kinds)}")
        return tuple(map(decode, kinds, items))
    if origin is not None and issubclass(origin, Mapping):
        return {decode(of[0], key): decode(of[1], each) for key, each in _checked(dict, plain).items()}
    if is_dataclass(kind):
        return _read_dataclass(kind, _checked(dict, plain))
    if hasattr(kind, "_fields"):  # a named tuple
        types = tuple(get_type_hints(kind, include_extras=True).values())
        return kind(*decode(GenericAlias(tuple, types), plain))
    if kind is float and (type(plain) is int or plain in ("inf", "-inf")):
        plain = float(decode(int, plain) if type(plain) is int else plain)
    return kind(_checked(str, plain)) if issubclass(kind, Enum) else _checked(kind, plain)


def _read_dataclass(kind: Any, plain: Mapping[str, Any]) -> Any:
    """Convert the members of an object; unknown ones, of a later version, are ignored."""
    values = {}
    for name, (of, is_needed) in _fields_of(kind).items():
        if name in plain:
            try:
                values[name] = decode(of, plain[name])
            except _LocatedError:
                raise
            except ValueError as error:
                raise _LocatedError(f"{error} ({name} of a {kind.__name__})") from None
        elif is_needed:
            raise ValueError(f"a {kind.__name__} without {name}")
    return kind(**values)


@functools.cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether it is required."""
    types = get_type_hints(kind, include_extras=True)
    return {
        field.name: (types[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    }


def _read_union(kinds: tuple[Any, ...], plain: Any) -> Any:
    """Convert to the first matching type of a union; dataclasses are distinguished by their names."""
    name = plain.get(TYPE) if isinstance(plain, dict) else None
    json_types: Mapping[Any, Any] = {str: str, int: int, float: (int, float), NoneType: NoneType}
    for kind in kinds:
        if is_dataclass(kind):
            matches = name == kind.__name__  # type: ignore[union-attr]
        else:
            matches = isinstance(plain, json_types.get(kind, list))  # all other types are lists
        if matches:
            return decode(kind, plain)
    raise ValueError(f"{_named(plain)} of an invalid type")


def _checked(kind: Any, plain: Any) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"no {kind.__name__}: {_named(plain)}")
    if (kind is int and abs(plain) > MAX_NUMBER) or (kind is float and math.isnan(plain)):
        raise ValueError(f"{_named(plain)} in place of a number up to 2**63")
    return plain


def _named(plain: Any) -> str:
    name = plain.get(TYPE) if isinstance(plain, dict) else None
    return f"a {name[:40]}" if isinstance(name, str) and name.isprintable() else repr(plain)[:40]
