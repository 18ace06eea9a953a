"""Origins of tensors: which ones are on the host, and which are this rank's share of a partial DTensor.

On a CPU mesh tensors of the host and of a device look alike, and a local tensor does not show that its
DTensor is partial. Both are known by storages, which all views of a tensor have in common.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.observe import (
    OTHERS,
    POINTS,
    around,
    follow,
    module_of,
    outside_of_torch,
    program_frame,
)
from pytest_dtdispatch.torchapi.ops import is_written, op_named
from pytest_dtdispatch.torchapi.optimizers import counters_of, options_of
from pytest_dtdispatch.torchapi.patches import (
    BoundReplacement,
    calling,
    kernels_routed,
    patched,
    skipped_by_compiler,
)
from pytest_dtdispatch.torchapi.tensors import (
    PLAIN_TYPES,
    is_dtensor,
    local_of,
    shards_of_simulated_ranks,
    storage_of,
    tensors_in,
)

# Functions that make a tensor on the host from numbers, unless a device is given.
MAKERS = frozenset(("tensor", "as_tensor", "scalar_tensor"))
# A key above autograd, and below vmap, that torch leaves unused. A thread includes it while it has
# marked tensors, except in compiled code, which would be compiled again.
OPS_KEY = "DeferredInit"
MOVES = (torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout)  # composite ops that may have a device


class Storages:
    """Weak set of the storages of plain tensors."""

    def __init__(self) -> None:
        self._found: dict[int, StorageWeakRef] = {}

    def __contains__(self, tensor: object) -> bool:
        return bool(self._found) and _key_of(tensor) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def add(self, tensor: torch.Tensor) -> None:
        """Add the storage of a tensor. The weak reference keeps its key from being used again."""
        key = _key_of(tensor)
        if key:
            self._found[key] = StorageWeakRef(shards_of_simulated_ranks(tensor)[0].untyped_storage())

    def discard(self, tensor: torch.Tensor) -> None:
        """Remove the storage of a tensor."""
        self._found.pop(_key_of(tensor), None)

    def purge(self) -> None:
        """Remove deleted storages."""
        self._found = {key: found for key, found in self._found.items() if not found.expired()}


def _key_of(tensor: Any) -> int:
    """Return the key of a plain tensor's storage, or of its first simulated rank's; 0 for other tensors."""
    plain = tensor if type(tensor) in PLAIN_TYPES else shards_of_simulated_ranks(tensor)[0]
    if type(plain) not in PLAIN_TYPES:
        return 0
    storage = storage_of(plain)
    return 0 if storage is None else int(storage._cdata)


class Origins:
    """Tensors on the host and shares of partial DTensors, with all tensors that were computed from them.

    Args:
        on_step: function that is called with each optimizer before its step.
    """

    def __init__(self, on_step: Callable[[Optimizer], None]) -> None:
        self._on_step = on_step
        self._host, self._shares, self._reduced = Storages(), Storages(), Storages()
        self._counters = Storages()  # on the host, as those of optimizers; what is computed from them is not
        self._running = threading.local()  # has `is_on_host` while the tensors of an op are all on the host
        self._creations = ExitStack()
        self._searched: set[tuple[CodeType, int]] = set()  # lines whose variables were searched
        self._owners: dict[int, int] = {}  # ids, with the number of states when it was marked in this step

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Observe tensors made from numbers, local tensors, and ops of threads that have marked tensors."""
        with (
            patched(DTensor, "to_local", self._around_to_local, by_code=False),
            around(
                {
                    "range": self._on_range,
                    "inference_end": _resuming,
                    "included_keys": _without_our_key,
                }
            ),
            patched(torch.Tensor, "__new__", calling(self._on_constructor)),
            _scalar_tensor_routed(self._on_creation),
            self._creations,
        ):
            self._observe_creations()
            _observers.append(self)
            try:
                yield
            finally:
                _observers.remove(self)
                observe_marked()

    def begin_step(self) -> None:
        """Stop observing ops in this thread if no marked tensor is left."""
        self._owners.clear()
        for marked in (self._reduced, self._counters, self._host, self._shares):
            marked.purge()
        observe_marked()

    def has_marked(self) -> bool:
        """Return whether ops are observed for a marked tensor."""
        return bool(self._host or self._shares)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor, or the local tensor of a DTensor, is on the host."""
        local = local_of(tensor)
        return hasattr(self._running, "is_on_host") or local in self._host or local in self._counters

    def is_share(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was computed from this rank's share of a partial DTensor."""
        local = local_of(tensor)
        is_local = local not in self._reduced and is_local_of_partial(local, sys._getframe(1))
        return local in self._shares or is_local

    def mark_host(self, tensor: torch.Tensor) -> None:
        """Mark a tensor, or the local tensor of a DTensor, as one on the host."""
        self._host.add(local_of(tensor))
        observe_marked()

    def search(self, frame: FrameType) -> None:
        """Mark the tensors of optimizers and meshes in variables near a line, once for each line."""
        frame = outside_of_torch(frame) or frame
        if (frame.f_code, frame.f_lineno) not in self._searched:
            self._searched.add((frame.f_code, frame.f_lineno))
            for owner in owners_near(frame):
                self.mark_owned(owner)

    def mark_owned(self, owner: Any) -> None:
        """Mark the tensors that an optimizer or a mesh keeps on the host."""
        states = len(getattr(owner, "state", ()))
        if self._owners.get(id(owner)) == states:
            return
        self._owners[id(owner)] = states
        if not isinstance(owner, Optimizer):
            for tensor in vars(owner).values():
                self._counters.add(tensor)
            return
        for tensor in options_of(owner):
            self.mark_host(tensor)
        for tensor in counters_of(owner):
            self._counters.add(tensor)

    def mark_device(self, tensor: torch.Tensor) -> None:
        """Mark a tensor, or the local tensor of a DTensor, as one on a device."""
        self._host.discard(local_of(tensor))

    def mark_share(self, tensor: torch.Tensor, is_partial: bool) -> None:
        """Mark a local tensor as this rank's share of a partial DTensor, or as a complete value."""
        if is_partial:
            self._shares.add(tensor)
            observe_marked()
        elif tensor in self._shares:
            self._shares.discard(tensor)
            self._reduced.add(tensor)

    def copied(self, tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """Mark the result of ``cpu`` as one on the host; it gets a storage of its own on the same memory."""
        copy = with_own_storage(tensor) if copy is tensor else copy
        if copy is not tensor or tensor.grad_fn is not None:
            self.mark_host(copy)
            self.mark_share(copy, tensor in self._shares)
        return copy

    def run(self, run_op: Callable[[], Any], call: OpCall) -> Any:
        """Run an op, and mark what it returned or wrote by the origins of its arguments."""
        tensors = call.tensors
        on_host = [tensor for tensor in tensors if self.is_host(tensor)]
        is_on_host = 0 < len(on_host) == len(tensors)
        is_outermost = is_on_host and not hasattr(self._running, "is_on_host")
        if is_outermost:
            self._running.is_on_host = True
        try:
            result = run_op()
        finally:
            if is_outermost:
                del self._running.is_on_host
        has_share = any(tensor in self._shares for tensor in tensors)
        if not on_host and not has_share:
            return result
        if call.func in MOVES:
            is_first = call.func is torch.ops.aten.to.device
            device = call.kwargs.get("device", call.args[1] if is_first else None)
            is_same = on_host and device is not None and result is call.args[0]
            return with_own_storage(result) if is_same else result
        name = call.func._opname
        # These ops read only the shape of their arguments, and these read nothing of what they write to.
        is_shape_read = name.endswith("_like") or name.startswith("new_")
        is_overwriting = name in ("copy_", "zero_", "fill_")
        sources = [each for each in tensors if not is_overwriting or each is not tensors[0]]
        has_share = not is_shape_read and any(source in self._shares for source in sources)
        for each in (*call.written, *tensors_in(result)):
            if has_share:
                self._shares.add(each)
            else:
                self._shares.discard(each)
            if is_on_host:
                self._host.add(local_of(each))
        if not is_on_host:
            for each in call.written:
                self._host.discard(local_of(each))
        return result

    def _observe_creations(self) -> None:
        self._creations.enter_context(
            kernels_routed("aten", {torch.ops.aten.lift_fresh.default: self._on_creation})
        )

    def _on_constructor(self, new: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Create a tensor of a subclass without our kernel, for which torch would create a plain one."""
        if args[:1] == (torch.Tensor,):
            return new(*args, **kwargs)
        self._creations.close()
        try:
            return new(*args, **kwargs)
        finally:
            self._observe_creations()

    def _on_range(self, enter: Callable[..., Any], *args: Any) -> Any:
        """Mark what an optimizer keeps on the host: its step begins with a range of the profiler."""
        frame = sys._getframe(3)  # beyond the two of the patch: FSDP2 has 50 ranges in a step
        if frame.f_code.co_name == "wrapper" and module_of(frame) == "torch.optim.optimizer":
            optimizer = frame.f_locals["self"]
            self.mark_owned(optimizer)
            self._on_step(optimizer)
        return enter(*args)

    def _around_to_local(self, inner: Any) -> Any:
        def to_local(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            local = inner(tensor, *args, **kwargs)
            self.mark_share(local, any(placement.is_partial() for placement in tensor.placements))
            return local

        return BoundReplacement(inner, functools.update_wrapper(to_local, inner))

    def _on_creation(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        created, frame = run(*args, **kwargs), program_frame(sys._getframe(1))
        if _has_no_device(frame.f_code, frame.f_lasti):
            if module_of(frame).startswith("torch.optim."):
                self._counters.add(created)
            else:
                self.mark_host(created)
        return created


def objects_near(frame: FrameType | None) -> Iterator[Any]:
    """Yield the objects in variables of the program's frames, and those inside of them, two levels deep.

    The collector does not list objects that were created before a counted step, as they are frozen.
    """
    while frame is not None:
        if not module_of(frame).startswith(OTHERS):
            named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
            values = [*frame.f_locals.values(), *named]
            inner = [each for value in values for each in _inside(value)]
            yield from (*values, *inner, *(each for value in inner for each in _inside(value)))
        frame = frame.f_back


def _inside(value: Any, most: int = 100) -> list[Any]:
    """Return objects inside of an object."""
    if issubclass(type(value), (list, tuple)):
        return list(value[:most])
    found = value if type(value) is dict else getattr(value, "__dict__", {})
    is_code = isinstance(value, (ModuleType, FunctionType, type)) or type(found) is not dict
    return [] if is_code else list(found.values())[:most]


def owners_near(frame: FrameType | None) -> Iterator[Any]:
    """Yield the optimizers and meshes in variables of the program's frames."""
    for value in objects_near(frame):
        if issubclass(type(value), (Optimizer, DeviceMesh)):
            yield value
        elif is_dtensor(value):
            yield value.device_mesh


def may_be_owned(tensor: Any) -> bool:
    """Return whether a tensor looks like an option or a step counter of an optimizer, or ranks of a mesh."""
    is_number = tensor.dim() == 0 and not tensor.requires_grad
    return type(tensor) is torch.Tensor and (is_number or not tensor.dtype.is_floating_point)


def with_own_storage(tensor: Any) -> Any:
    """Return a tensor on the same memory with a storage of its own, or the tensor if that is impossible.

    A tensor with a gradient would lose in-place changes of the other, and a traced one its graph.
    """
    local: Any = local_of(tensor)
    is_special = local.is_conj() or local.is_neg() or local.is_quantized or local.is_nested
    if is_special or tensor.requires_grad or not _key_of(local) or local.layout is not torch.strided:
        return tensor
    # Ops are recorded in a graph, or have tangents.
    is_traced = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    if is_traced or torch.autograd.forward_ad._current_level >= 0 or torch._C._is_tracing():
        return tensor
    hidden = torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction()
    with hidden[0], hidden[1], _unobserved(), torch.inference_mode(local.is_inference()):
        if type(local) in PLAIN_TYPES:
            copy = _in_other_storage(local.detach())
        else:
            copy = type(local)({rank: _in_other_storage(each) for rank, each in local._local_tensors.items()})
        return DTensor(copy, tensor._spec, requires_grad=False) if is_dtensor(tensor) else copy


def _in_other_storage(local: torch.Tensor) -> torch.Tensor:
    whole: Any = torch.empty(0, dtype=torch.uint8).set_(local.untyped_storage())
    storage = torch.utils.dlpack.from_dlpack(whole).untyped_storage()
    copy: Any = torch.empty(0, dtype=local.dtype)
    return copy.set_(storage, local.storage_offset(), local.shape, local.stride())  # type: ignore[no-any-return]


def is_local_of_partial(tensor: torch.Tensor, frame: FrameType | None) -> bool:
    """Return whether a tensor is a view of a partial DTensor's local tensor, in the program's variables.

    Variables of torch's functions are inspected too if they read it, as printing does.
    """
    naming = _frame_of_local_tensors(frame)
    if naming is None:
        return False
    key = _key_of(tensor)
    near = chain(naming.f_locals.values(), objects_near(frame))
    holders = (each for each in near if is_dtensor(each) and _key_of(local_of(each)) == key)
    return any(placement.is_partial() for holder in holders for placement in holder.placements)


def _frame_of_local_tensors(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program, or of torch inside of it, if it names local tensors."""
    while frame is not None:
        module = module_of(frame)
        if "_local_tensor" in frame.f_code.co_names and not module.startswith("pytest_dtdispatch."):
            return frame
        if not module.startswith(OTHERS):
            return None
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=1024)
def _has_no_device(code: CodeType, last: int) -> bool:
    """Return whether an instruction calls one of ``MAKERS`` without a device.

    The function was loaded before its arguments, and nothing has taken it from the stack since.
    """
    called = [each for each in dis.get_instructions(code) if each.offset <= last]
    if MAKERS.isdisjoint(code.co_names) or called[-1].opname == "CALL_FUNCTION_EX":
        return False  # the device may be among unpacked arguments
    names = [
        code.co_consts[each.arg or 0] for each in called[-4:] if each.opname in ("KW_NAMES", "LOAD_CONST")
    ]
    return _callee(called[:-1]) in MAKERS and not any(
        "device" in each for each in names if isinstance(each, tuple)
    )


def _callee(instructions: Sequence[dis.Instruction]) -> str:
    """Return the name of the last function or attribute that was loaded and is still on the stack."""
    loads = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
    creators = MAKERS | {"new_tensor"}  # of tensors from numbers
    lowest = depth = 0  # of the stack, relative to the call
    for each in reversed(instructions):
        if each.opname in loads and each.argval in creators and depth <= lowest:
            return str(each.argval)
        depth -= dis.stack_effect(each.opcode, each.arg, jump=False)
        lowest = min(lowest, depth)
    return ""


_observers: list[Origins] = []


def observe_marked() -> None:
    """Observe the ops of this thread while a counter has marked tensors.

    Autograd and inference mode restore the keys of the thread when they end. Guards of compiled code compare
    keys: it must run without ours.
    """
    is_on = any(each.has_marked() for each in _observers)
    if is_on and follow(sys.modules.get("torch._dynamo.convert_frame"), "output_codes.seen"):
        is_on = _enters_with_patched_keys()
    if is_on:
        _register_kernels()
    _include_our_key(is_on)


def _resuming(end: Callable[..., Any], *args: Any) -> Any:
    try:
        return end(*args)
    finally:
        observe_marked()


def _include_our_key(is_on: bool) -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(OPS_KEY, is_on)


@contextmanager
def _unobserved() -> Iterator[None]:
    """Leave the ops of this thread unobserved."""
    is_on = torch._C._dispatch_tls_is_dispatch_key_included(OPS_KEY)
    _include_our_key(False)
    try:
        yield
    finally:
        _include_our_key(is_on and bool(_observers))  # inference mode may have restored it since


@functools.cache
def _enters_with_patched_keys() -> bool:
    """Return whether compiled code runs with the keys that a function returns, which we patch."""
    return POINTS["included_keys"].names[0] in inspect.getsource(sys.modules["torch._dynamo.eval_frame"])


def _without_our_key(included: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the keys that the thread includes without ours: code is compiled for them."""
    return included(*args, **kwargs).remove(torch._C._parse_dispatch_key(OPS_KEY))


@contextmanager
def _scalar_tensor_routed(method: Callable[..., Any]) -> Iterator[None]:
    """Route ``scalar_tensor``, whose kernel for BackendSelect only chooses the device's."""
    op = torch.ops.aten.scalar_tensor.default
    run = partial(op._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)

    def listener(_: Any, *args: Any, **kwargs: Any) -> Any:
        return method(run, *args, **kwargs)

    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it replaces a kernel
            stack.enter_context(kernels_routed("aten", {op: listener}))
        yield


@functools.cache
def _register_kernels() -> Any:
    """Register kernels for this process; return their libraries, as they are removed with them."""
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, OPS_KEY)
    key: Any = torch._C._parse_dispatch_key(OPS_KEY)
    getattr(torch._ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []).append(key)
    for operator in getattr(torch._ops, "_higher_order_ops", {}).values():
        operator.fallthrough(key)
    for name in torch._C._dispatch_get_all_op_names():
        op = op_named(name) if name.startswith("aten::") else None
        if op is not None and (_computes(op) or op in MOVES):
            library.impl(op.name(), _kernel_of(op), OPS_KEY)
    return library, others


def _kernel_of(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call = OpCall(op, args, kwargs)
        run_op: Callable[[], Any] = partial(op, *args, **kwargs)
        for observer in _observers:
            run_op = partial(observer.run, run_op, call)
        with _unobserved(), torch._C.DisableTorchFunction():
            return run_op()

    return skipped_by_compiler(run)  # type: ignore[no-any-return]


def _computes(op: Any) -> bool:
    """Return whether an op is not made of others, and computes tensors from tensors."""
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    arguments, returns = op._schema.arguments, op._schema.returns
    is_view = any(each.alias_info and not each.alias_info.is_write for each in returns)
    takes, gives = (any("Tensor" in str(each.type) for each in some) for some in (arguments, returns))
    return not (is_composite or is_view) and takes and (gives or any(map(is_written, arguments)))
