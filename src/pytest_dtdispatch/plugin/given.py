"""What flags and the ini file give, each value read; of the option of all limits each by its own field."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from pytest_dtdispatch.core.parsing import READERS, beside, read_choice, read_exports, read_limits
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.plugin.flags import FILE, LIMITS, OPTIONS, WITH_FLAG, Option

[MAX] = (option for option in OPTIONS if option.kind == "limits")
_VALUES = pytest.StashKey[dict[str, Any]]()


def flag_values(config: pytest.Config) -> dict[str, Any]:
    """Read what flags give, by field."""
    if _VALUES not in config.stash:
        values = {option.field: read_given(option, value, option.flag) for option, value in _flags(config)}
        config.stash[_VALUES] = spelled_out(values, MAX.flag)
    return config.stash[_VALUES]


def ini_values(config: pytest.Config) -> dict[str, Any]:
    """Read what the ini file gives, by field, where no flag does."""
    flagged = flag_values(config)
    values: dict[str, Any] = {}
    for option in WITH_FLAG:
        if option.field not in flagged and (value := config.getini(option.dest)):
            read = read_given(option, value, _ini_place(config, option))
            if option.role == FILE:  # files beside the ini file
                read = beside(read, config.inipath.parent if config.inipath else config.rootpath)
            values[option.field] = read
    return spelled_out(values, _ini_place(config, MAX))


def gate_flags(config: pytest.Config, gates: Collection[str]) -> list[str]:
    """Name the flags of gates that were given on the command line: ``--dtdispatch-max misses=0``."""
    return _named([(option, value, option.flag) for option, value in _flags(config)], gates)


def limits_given(config: pytest.Config, gates: Collection[str]) -> list[str]:
    """Name limits as flags give them, and where no flag does the ini file."""
    flagged = flag_values(config)
    values = ((option, config.getini(option.dest)) for option in WITH_FLAG)
    in_ini = [(option, value, _ini_place(config, option)) for option, value in values if value]
    return [*gate_flags(config, gates), *_named(in_ini, [gate for gate in gates if gate not in flagged])]


def _named(given: Iterable[tuple[Option, Any, str]], gates: Collection[str]) -> list[str]:
    named = []
    for option, value, where in given:
        if option is MAX:
            limits = read_given(MAX, value, where)
            named += [f"{where} {name}={limits[name]}" for name in limits if LIMITS[name] in gates]
        elif option.field in gates:
            named.append(where)
    return named


def spelled_out(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Give each limit its own field, as its older spelling has it."""
    for name, most in values.pop(MAX.field, {}).items():
        if (other := values.setdefault(LIMITS[name], most)) != most:
            raise pytest.UsageError(f"{where}: {name}={most}, but {LIMITS[name]}={other} is given too")
    return values


def read_given(option: Option, value: Any, where: str, name: str = "") -> Any:
    """Read a value, or say in one line what is wrong with it, and where it stands."""
    try:
        return read_value(option, value)
    except ValueError as error:
        what = "" if option is MAX else f"{name}{shown(value)} is not "
        raise pytest.UsageError(f"{where}: {what}{error}") from None


def read_value(option: Option, value: Any) -> Any:
    """Read a value of one option; a ValueError says what is valid."""
    if option is MAX:
        return read_limits(value, option.choices)
    if option.kind == "exports":
        return read_exports(value, option.choices)
    if option.kind == "metric":  # a built-in one, or that of a sampler that was registered
        from pytest_dtdispatch.measuring.sampler import SAMPLERS

        return read_choice(value, tuple(dict.fromkeys((*option.choices, *SAMPLERS))))
    return read_choice(value, option.choices) if option.choices else READERS[option.kind](value)


def _flags(config: pytest.Config) -> list[tuple[Option, Any]]:
    values = ((option, config.getoption(option.dest, None)) for option in WITH_FLAG)
    return [(option, value) for option, value in values if value is not None]


def _ini_place(config: pytest.Config, option: Option) -> str:
    """Name the ini file, or the ``-o`` that beats it."""
    name = option.dest
    overridden = any(text.partition("=")[0] == name for text in config.getoption("override_ini") or ())
    return f"-o {name}" if overridden else f"{config.inipath}: {name}"
