"""DTensors made of local tensors, taken apart, and placed anew: told as it happens."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple
from unittest.mock import patch

from pytest_dtdispatch.torchapi.propagator import redistribute_module
from pytest_dtdispatch.torchapi.shared_hook import held_by_name

API = "torch.distributed.tensor._api"
FSDP = "torch.distributed.fsdp._fully_shard._fsdp_common"


class Conversion(str, Enum):
    """What a conversion does."""

    WRAP = "wrap"
    UNWRAP = "unwrap"
    REDISTRIBUTE = "redistribute"

    __str__ = str.__str__


class Converter(NamedTuple):
    """A function of torch that converts.

    Args:
        what: it does.
        name: by which users know it: ``from_local``; in backward that of the forward function.
        is_backward: whether it is the backward function of it.
    """

    what: Conversion
    name: str
    is_backward: bool = False


# Functions of autograd's, by their class. What users call is left as it is: compiled code is guarded on it.
_FUNCTIONS = {
    "_FromTorchTensor": (
        Converter(Conversion.WRAP, "from_local"),
        Converter(Conversion.UNWRAP, "from_local", is_backward=True),
    ),
    "_ToTorchTensor": (
        Converter(Conversion.UNWRAP, "to_local"),
        Converter(Conversion.WRAP, "to_local", is_backward=True),
    ),
    "Redistribute": (
        Converter(Conversion.REDISTRIBUTE, "redistribute"),
        Converter(Conversion.REDISTRIBUTE, "redistribute", is_backward=True),
    ),
}
# Plain functions, by module and name, with the name that users know: those of FSDP2 have none.
_PLAIN = (
    (API, "distribute_tensor", Converter(Conversion.WRAP, "distribute_tensor")),
    (FSDP, "_from_local_no_grad", Converter(Conversion.WRAP, "DTensor")),
)


def conversion_hooks(
    watcher: Any, of: Collection[Conversion] = tuple(Conversion)
) -> Iterator[AbstractContextManager[Any]]:
    """Tell a watcher of each conversion of some kinds.

    It is told by ``watcher.on_conversion(converter, function, *args, **kwargs)``, and makes the call. Where
    torch converts inside of a conversion, as ``to_local`` does in backward by ``from_local``, it is told of
    both, the outer one first. A backward function without a gradient does nothing, and is told of too.
    Without grad, ``to_local`` hands out the local tensor, which is no call.
    """
    for name, (forward, backward) in _FUNCTIONS.items():
        owner = _function_class(name)
        for method, converter in (("forward", forward), ("backward", backward)):
            if converter.what not in of:
                continue
            inner = getattr(owner, method)
            told = wrapped_by(watcher, converter, inner)
            yield patch.object(owner, method, staticmethod(told))
    for module, name, converter in _PLAIN:
        inner = getattr(sys.modules.get(module), name, None)
        if inner is not None:
            yield from held_by_name(name, inner, wrapped_by(watcher, converter, inner))


def _function_class(name: str) -> Any:
    """Find a class of autograd functions: every known torch has each of them, in one of two modules."""
    return getattr(importlib.import_module(API), name, None) or getattr(redistribute_module(), name)


def wrapped_by(watcher: Any, converter: Converter, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of Python that a watcher is told of, as torch looks for code in what it calls."""
    told = watcher.on_conversion

    def converted(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return told(converter, inner, *args, **kwargs)

    return converted
