"""Dataclasses as plain data for files, and back: by the names of their types, and nothing is evaluated."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

TYPE = "type"
NOT_FINITE = ("inf", "-inf", "nan")  # floats that JSON has no number for


def encode(value: Any) -> Any:
    """Make plain data of a value, which ``json`` writes.

    A dataclass has the name of its type, and the fields whose values are not their defaults.
    """
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        differing = {field.name for field in fields(value) if named[field.name] != _default(field)}
        return {
            TYPE: type(value).__name__,
            **{name: encode(each) for name, each in named.items() if name in differing},
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def decode(kind: Any, plain: Any) -> Any:
    """Read a value of a type from plain data, which may come from anywhere.

    Args:
        kind: as a field of a dataclass is annotated: what else is in the data is refused.
        plain: what ``json`` read; fields that the type does not have are left out.

    Raises:
        ValueError: in a few words, what is no value of the type.
    """
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        return decode(_chosen(get_args(kind), plain), plain)
    if origin is tuple:
        return _read_tuple(get_args(kind), plain)
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_value = get_args(kind)
        return {decode(of_key, key): decode(of_value, each) for key, each in _taken(dict, plain).items()}
    if is_dataclass(kind):
        return _read_dataclass(kind, _taken(dict, plain))
    return _read_simple(kind, plain)


def _read_simple(kind: Any, plain: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(_taken(str, plain))
    if kind is float and (type(plain) is int or plain in NOT_FINITE):
        return float(plain)
    if kind is int and type(plain) is int and plain < 0:
        raise ValueError(f"no whole number from 0: {plain}")
    return _taken(kind, plain)


def _read_dataclass(kind: Any, plain: Mapping[str, Any]) -> Any:
    given = {}
    for name, (of_field, is_needed) in _fields_of(kind).items():
        if name in plain:
            given[name] = decode(of_field, plain[name])
        elif is_needed:
            raise ValueError(f"a {kind.__name__} without {name}")
    return kind(**given)


def _read_tuple(kinds: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    items = _taken(list, plain)
    if kinds[-1] is Ellipsis:
        return tuple(decode(kinds[0], item) for item in items)
    if len(items) != len(kinds):
        raise ValueError(f"{len(items)} items in place of {len(kinds)}")
    return tuple(decode(kind, item) for kind, item in zip(kinds, items, strict=True))


def _chosen(kinds: Iterable[Any], plain: Any) -> Any:
    """Choose the type of a union that the data is of."""
    for kind in kinds:
        if is_dataclass(kind):
            if isinstance(plain, dict) and plain.get(TYPE) == kind.__name__:  # type: ignore[union-attr]
                return kind
        elif isinstance(plain, _json_type(kind)):
            return kind
    raise ValueError(f"{_named(plain)} where none is valid")


def _json_type(kind: Any) -> Any:
    return {str: str, int: int, float: (int, float), NoneType: NoneType}.get(get_origin(kind) or kind, list)


@functools.cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Give each field of a dataclass with its type, and whether data must have it."""
    types = get_type_hints(kind)
    return {
        field.name: (types[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    }


def _taken(kind: type, plain: Any) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"no {kind.__name__}: {_named(plain)}")
    return plain


def _named(plain: Any) -> str:
    name = plain.get(TYPE) if isinstance(plain, dict) else None
    return f"a {name[:40]}" if isinstance(name, str) else repr(plain)[:40]
