"""What a step redistributes, sends to other ranks, wraps and unwraps: listed as torch tells of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.places import CodePlace
from pytest_dtdispatch.core.spans import Interval
from pytest_dtdispatch.measuring.call import dtype_text, placement_text, shape_text
from pytest_dtdispatch.steps.happened import Collective, Redistribution, Wrapping, change_text
from pytest_dtdispatch.torchapi.hooks import Conversion, Converter
from pytest_dtdispatch.torchapi.ops import op_name
from pytest_dtdispatch.torchapi.profiling import Timed
from pytest_dtdispatch.torchapi.tensors import shards_of_simulated_ranks, tensor_traits

Function = Callable[..., Any]


class _Running(threading.local):
    """What runs in a thread."""

    implied_by = ""
    collective_bytes = 0
    is_in_collective = False
    place: CodePlace | None = None  # of the redistribution that runs
    is_converting = False


class TransferWatch:
    """List what is told of since the last look; each method is given a function of torch, and calls it.

    Args:
        here: says where in the program the calling thread is.
    """

    def __init__(self, here: Callable[[], CodePlace]) -> None:
        self._here = here
        self._running = _Running()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.redistributions: list[Redistribution] = []
        self.collectives: list[Collective] = []
        self.converted: dict[Conversion, list[Wrapping]] = {Conversion.WRAP: [], Conversion.UNWRAP: []}

    def on_implied(self, redistribute: Function, info: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the op whose arguments are redistributed."""
        with patch.object(self._running, "implied_by", op_name(schema.op)):
            return redistribute(info, schema, *args, **kwargs)

    def on_redistribution(self, redistribute: Function, *args: Any, **kwargs: Any) -> Any:
        """List a redistribution that changes placements, with the bytes that its collectives handle."""
        _, source, target, *_ = args
        if tuple(source.placements) == tuple(target.placements):
            return redistribute(*args, **kwargs)
        running, place = self._running, self._here()
        outer_bytes, outer_place = running.collective_bytes, running.place
        running.collective_bytes, running.place = 0, place
        try:
            with Timed("redistribution", partial(_change, source, target)) as timed:
                result = redistribute(*args, **kwargs)
            self.redistributions.append(self._redistribution(source, target, place, timed.when))
        finally:
            running.collective_bytes, running.place = outer_bytes, outer_place
        return result

    def on_collective(self, kind: str, collective: Function, *args: Any, **kwargs: Any) -> Any:
        """List a collective; one that runs inside another, by which that one is made, is part of it."""
        if self._running.is_in_collective:
            return collective(*args, **kwargs)
        place = self._running.place or self._here()
        self._running.is_in_collective = True
        try:
            with Timed("collective", lambda: kind) as timed:
                result = collective(*args, **kwargs)
        finally:
            self._running.is_in_collective = False
        handled = max(map(_bytes, (*args, *kwargs.values(), result)))
        self.collectives.append(Collective(kind, handled, place, timed.when))
        self._running.collective_bytes += handled
        return result

    def on_conversion(self, converter: Converter, convert: Function, *args: Any, **kwargs: Any) -> Any:
        """List a wrap or an unwrap; one that runs inside another is part of it."""
        __tracebackhide__ = True
        if self._running.is_converting or converter.what is Conversion.REDISTRIBUTE:
            return convert(*args, **kwargs)
        self._running.is_converting = True
        try:
            with Timed(converter.what, lambda: converter.name) as timed:
                result = convert(*args, **kwargs)
        finally:
            self._running.is_converting = False
        made = result if isinstance(result, tuple) else (result,)
        self._note_conversion(converter, args if converter.what is Conversion.UNWRAP else made, timed.when)
        return result

    def _note_conversion(self, converter: Converter, tensors: tuple[Any, ...], when: Interval | None) -> None:
        """List the DTensor that went in, or came out; in backward there may be none."""
        wrapped = next((tensor for tensor in tensors if isinstance(tensor, DTensor)), None)
        if wrapped is not None:
            placements = tuple(map(placement_text, wrapped.placements))
            wrapping = Wrapping(converter.name, _tensor_text(wrapped), placements, self._here(), when)
            self.converted[converter.what].append(wrapping)

    def _redistribution(
        self, source: Any, target: Any, place: CodePlace, when: Interval | None
    ) -> Redistribution:
        return Redistribution(
            op=self._running.implied_by or "redistribute",
            tensor=_tensor_text(source),
            source=tuple(map(placement_text, source.placements)),
            target=tuple(map(placement_text, target.placements)),
            bytes=self._running.collective_bytes,
            place=place,
            when=when,
        )


def _change(source: Any, target: Any) -> str:
    """Write placements before and after."""
    return change_text(map(placement_text, source.placements), map(placement_text, target.placements))


def _tensor_text(tensor: Any) -> str:
    """Write dtype and global shape of a tensor, or of the spec that stands for it."""
    traits = tensor_traits(tensor)
    return f"{dtype_text(traits.dtype)}{shape_text(traits.shape)}" if traits else ""


def _bytes(argument: Any) -> int:
    """Bytes of the tensors of an argument, on the first rank where all are simulated."""
    if isinstance(argument, torch.Tensor):
        tensor = shards_of_simulated_ranks(argument)[0]
        return int(tensor.numel() * tensor.element_size())
    return sum(map(_bytes, argument)) if isinstance(argument, (list, tuple)) else 0
