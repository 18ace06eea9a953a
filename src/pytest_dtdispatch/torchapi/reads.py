"""Reads of tensor values by the host: torch ops, methods and functions that wait for a device."""

from __future__ import annotations

import dis
import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch as patch_attribute

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.compiler import is_generated
from pytest_dtdispatch.torchapi.observe import (
    SIMULATION,
    Point,
    module_of,
    observe_simulated_ops,
    patch,
    program_frame,
)
from pytest_dtdispatch.torchapi.ops import op_named
from pytest_dtdispatch.torchapi.patches import (
    call_hidden,
    has_torch_function,
    kernels_routed,
    skipped_by_compiler,
)

# Ops that read values, or whose result shape depends on values, with the names of their functions.
OPS = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "nonzero.out": "nonzero",
    "masked_select": "masked_select",
    "masked_select.out": "masked_select",
    "_coalesce": "coalesce",
    "equal": "equal",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique_consecutive",
    "repeat_interleave.Tensor": "repeat_interleave",
    "bincount": "bincount",
}
# Methods and functions that call no op on a CPU tensor.
METHODS = {
    **{Point(("torch",), "Tensor", (name,), is_required=True): name for name in ("tolist", "numpy", "cpu")},
    Point(("torch",), "Tensor", ("__reduce_ex__",), is_required=True): "pickle",
    Point(("torch._tensor_str",), "", ("_str",), is_required=True): "print",
    **{Point((SIMULATION,), "LocalTensor", (name,)): name for name in ("tolist", "numpy")},
    Point((SIMULATION,), "LocalTensor", ("__repr__",)): "print",
}


@contextmanager
def observe_reads(observer: Any) -> Iterator[None]:
    """Route reads of every thread through methods of an observer, which must call their first argument.

    * ``on_read(run, name, tensor, *args, **kwargs)``: a read; a read of a DTensor contains that of its shard
    * ``on_cpu_reader(run, *args, **kwargs)``: an op that reads numbers only on a CPU
    """
    wraps = {point: partial(_reading, observer, name) for point, name in METHODS.items()}
    listeners = {op: partial(_on_op, observer, OPS[name]) for op, name in _ops_of((*OPS,)).items()}
    # Ops that read values only on a CPU: to check arguments, and numbers that a GPU kernel reads itself.
    cpu_readers = (
        *("_index_put_impl_", "multinomial", "_assert_async", "_assert_async.msg"),
        *("linalg_lu_solve", "linalg_lu_solve.out"),
        *("std.correction", "var.correction", "embedding_renorm_"),
        *("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"),
        *("_fused_sgd_.tensor_lr", "_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr"),
    )
    listeners |= dict.fromkeys(_ops_of(cpu_readers), observer.on_cpu_reader)
    # A GPU reads values for `one_hot` too if the number of classes is not given.
    composite_readers = ("one_hot", "quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar")
    composite = {op: partial(_on_composite, observer, op) for op in _ops_of(composite_readers)}
    with (
        kernels_routed("aten", listeners),
        kernels_routed("aten", composite, "AutogradCPU"),
        kernels_routed("aten", composite),  # inference mode has no autograd
        observe_simulated_ops(partial(_on_simulated_op, observer)),
        patch(wraps),
        _handling(observer),
    ):
        yield


@functools.cache
def _ops_of(names: tuple[str, ...]) -> dict[Any, str]:
    """Return the names of the ops that this torch has."""
    found = {}
    for name in names:
        op = op_named(f"aten::{name}")
        if op is not None:
            found[op] = name
    return found


def _on_op(observer: Any, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if name == "item" and isinstance(args[0], (int, float, complex)):
        return args[0]  # a number that torch wrapped in a tensor
    if kwargs.get("output_size") is not None:  # repeat_interleave then reads no value for its result shape
        return run(*args, **kwargs)
    return observer.on_read(run, name, *args, **kwargs)


def _on_simulated_op(observer: Any, run: Callable[..., Any], op: Any, *args: Any, **_: Any) -> Any:
    name = OPS.get(_ops_of((*OPS,)).get(op, ""), "")
    return observer.on_read(run, name, *args) if name else run()


def _on_composite(observer: Any, op: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the ops of a composite op, as autograd does; a DTensor has no rule for it."""
    run = partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    if op is torch.ops.aten.one_hot.default and args[1:] in ((), (-1,)):
        return observer.on_read(run, "one_hot", *args, **kwargs)
    return observer.on_cpu_reader(run, *args, **kwargs)


def _reading(observer: Any, name: str, inner: Any) -> Any:
    def read(*args: Any, **kwargs: Any) -> Any:  # a function, so that it is bound as a method
        __tracebackhide__ = True
        if has_torch_function(args):
            return call_hidden(observer.on_read, inner, name, *args, **kwargs)
        return observer.on_read(inner, name, *args, **kwargs)

    return skipped_by_compiler(read)


class HandledOp:
    """A handler of the dispatcher and its key: equal to an op, except in a thread that runs the handler."""

    def __init__(self, op: Any, name: str, observer: Any) -> None:
        self.op, self._name, self._observer = op, name, observer
        self._running = threading.local()

    def __hash__(self) -> int:
        return hash(self.op)

    def __eq__(self, other: object) -> bool:
        return other is self or (other is self.op and not vars(self._running))

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Notify the observer of a read, which calls the op again."""
        with patch_attribute.object(self._running, "is_on", True, create=True):
            return call_hidden(self._observer.on_read, op, self._name, *args, **kwargs)


@contextmanager
def _handling(observer: Any) -> Iterator[None]:
    """Notify an observer of reads of DTensors, as kernels receive only their local tensors.

    A handler of the dispatcher calls the op again. The dispatcher then finds no handler, so that calls, hits
    and misses are unchanged.
    """
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    keys = [HandledOp(torch.ops.aten._local_scalar_dense.default, "item", observer)]
    keys.append(HandledOp(torch.ops.aten.equal.default, "equal", observer))
    added = {key: skipped_by_compiler(key.handle) for key in keys if key.op not in handlers}
    handlers.update(added)
    try:
        yield
    finally:
        for key in added:
            handlers.pop(key, None)


def is_host_read(frame: FrameType) -> bool:
    """Return whether this package or torch is reading a tensor that is always on the host.

    Args:
        frame: frame that called the observer.
    """
    frame = program_frame(frame)
    modules = (
        "pytest_dtdispatch.",
        # Of ranks, offsets of shards, states of generators, seeds and indices.
        *("torch.distributed.device_mesh.", "torch.distributed._mesh_layout."),
        *("torch.distributed._local_tensor.", "torch.distributed.tensor.placement_types."),
        *("torch.distributed.tensor._random.", "torch.distributed.tensor._utils.", "torch.utils.data."),
        "copy.",  # copies only the reference to the memory
    )
    # Generated code reads a number that a graph returned.
    return f"{module_of(frame)}.".startswith(modules) or is_generated(frame)


def is_compared(frame: FrameType) -> bool:
    """Return whether a value that a frame reads may decide which code runs next, or is an index.

    A line that names no function that reads, such as ``item``, reads implicitly, as ``rows[number]`` does.
    """
    lines = _lines_with_value(frame)
    # Functions by which a program reads a number.
    readers = {"item", "tolist", "cpu", "numpy", "to", "float", "int", "bool", "complex"}
    readers |= {"format", "str", "print", "repr"}
    if not any(each.argval in readers or each.opname.startswith("FORMAT") for each in lines.before):
        return True
    while not lines.decide:
        caller = frame.f_back
        if not lines.are_returned or caller is None or module_of(caller).startswith("pytest_dtdispatch."):
            return False
        of_caller = _lines_with_value(caller)
        if lines.is_comprehension:  # takes no values in what its line called before it
            of_caller = of_caller._replace(before=())
        frame, lines = caller, of_caller
    return True


class LinesWithValue(NamedTuple):
    """Instructions of a function that may use a value which the host has read.

    Args:
        before: those of the line that reads or calls the reading function, up to this call.
        rest: those that follow, to the end of the statement.
        of_containers: lines that use a list or a dictionary to which the statement adds.
        others: lines that use a variable with the value.
        is_comprehension: whether the function is a comprehension.
    """

    before: Sequence[dis.Instruction]
    rest: Sequence[dis.Instruction]
    of_containers: Sequence[Sequence[dis.Instruction]]
    others: Sequence[Sequence[dis.Instruction]]
    is_comprehension: bool

    @property
    def decide(self) -> bool:
        """Whether one of them may decide which code runs next, or has the value as an index."""
        every = [*self.rest, *chain(*self.of_containers, *self.others)]
        deciding = ("_IF_", "COMPARE", "TO_BOOL", "UNARY_NOT", "CONTAINS")  # in names of instructions
        indexes = any(each.opname == "BINARY_SUBSCR" for each in chain(*self.others))
        # From Python 3.12 on, the range that a comprehension has begun to iterate is in the same code.
        begun = max((n for n, each in enumerate(self.before) if each.opname == "FOR_ITER"), default=0)
        counts = any(each.argval == "range" for each in (*self.before[begun:], *every))
        return indexes or counts or any(word in each.opname for each in every for word in deciding)

    @property
    def are_returned(self) -> bool:
        """Whether one of them returns or yields a value that is not a constant."""
        lines = (self.rest, *self.of_containers, *self.others)
        returns = any(
            each.opname == "RETURN_VALUE" and last.opname != "LOAD_CONST"
            for line in lines
            for last, each in pairwise([*self.before, *line] if line is self.rest else line)
        )
        yields = any(each.opname == "YIELD_VALUE" for each in chain(*lines))
        return returns or yields or self.is_comprehension


def _lines_with_value(frame: FrameType) -> LinesWithValue:
    """Follow the value of the call that a frame runs: to variables and containers, and to those they set."""
    code = [*dis.get_instructions(frame.f_code)]
    at = max(number for number, each in enumerate(code) if each.offset <= max(frame.f_lasti, 0))
    begins = [number for number, each in enumerate(code) if each.starts_line]
    lines = [code[first:last] for first, last in pairwise([*begins, len(code)])]
    before = code[max([0, *(first for first in begins if first <= at)]) : at + 1]
    rest = _rest_of_statement(code[at + 1 :])
    containers = _written_containers(frame, [*before, *rest])
    of_containers = [line for line in lines if containers & _names(line, "LOAD")]
    with_value = [rest, *of_containers]
    for line in with_value:  # grows
        stored = _names(line, "STORE")
        with_value += [each for each in lines if stored & _names(each, "LOAD") and each not in with_value]
    others = with_value[1 + len(of_containers) :]
    is_comprehension = frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
    return LinesWithValue(before, rest, of_containers, others, is_comprehension)


def _rest_of_statement(after: Sequence[dis.Instruction]) -> Sequence[dis.Instruction]:
    """Return the instructions after a call that may take its result: to the end of its line at least."""
    ends = ("STORE_", "POP_TOP", "RETURN_", "POP_JUMP")
    line = next((number for number, each in enumerate(after) if each.starts_line), len(after))
    if any(each.opname.startswith(ends) for each in after[:line]):
        return after[:line]
    last = next((number for number, each in enumerate(after) if each.opname.startswith(ends)), len(after))
    # The end of a block may precede the return.
    return after[: last + 2]


def _names(line: Iterable[dis.Instruction], action: str) -> set[str]:
    """Return the names that instructions load or store; one instruction of Python 3.13 has two names."""
    found: set[str] = set()
    for each in line:
        if each.opname not in ("LOAD_CONST", "LOAD_FAST_AND_CLEAR"):  # the latter saves an outer variable
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            actions = re.findall("LOAD|STORE", each.opname)
            found.update(name for name, word in zip(names, actions, strict=False) if word == action)
    return found


def _written_containers(frame: FrameType, line: Sequence[dis.Instruction]) -> set[str]:
    """Return the variables of a line that stores an item whose values are containers."""
    methods = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
    if not any(each.opname == "STORE_SUBSCR" or each.argval in methods for each in line):
        return set()
    values = {**frame.f_globals, **frame.f_locals}
    containers = (list, dict, set, deque)
    return {name for name in _names(line, "LOAD") if isinstance(values.get(name), containers)}


def waits_for_device(tensor: Any) -> bool:
    """Return whether reading a tensor waits for a device, or would on a machine with one."""
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta:
        return False
    return tensor.device.type != "cpu" or not torch.cuda.is_initialized()
