"""What a call changes: noted before it and after, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdRef

from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.ops import unnoticed
from pytest_dtdispatch.torchapi.tensors import (
    Heap,
    StorageReference,
    ask_tensor,
    bytes_of,
    cuda_generator,
    has_graph,
    memory_key,
    random_tracker_states,
    set_spec,
    set_version,
    spec_of,
    storage_behind,
    storage_of,
    storages_of,
    version_of,
)


class Snapshot:
    """Something of several objects, as it was, and as the program's call left it."""

    def __init__(
        self, read: Callable[[Any], Any], write: Callable[[Any, Any], None], kind: type = object
    ) -> None:
        self._read = read
        self._write = write
        self._kind = kind
        self._before: dict[int, tuple[Any, Any]] = {}
        self._after: list[tuple[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def note(self, owner: Any) -> None:
        """Note it of an object of its kind that was not met before."""
        if id(owner) not in self._before and issubclass(type(owner), self._kind):
            self._before[id(owner)] = (owner, self._read(owner))

    def settle(self) -> None:
        """Note what the program's call left behind."""
        self._after = [(owner, self._read(owner)) for owner, _ in self._before.values()]

    def rewind(self) -> None:
        """Put it back to what it was when it was noted."""
        for owner, value in reversed(self._before.values()):  # a later view has the version of its base
            self._write(owner, value)

    def restore(self) -> None:
        """Put it back to what the program's call left behind, of objects met later to what it was then."""
        self.rewind()
        for owner, value in reversed(self._after):
            self._write(owner, value)


def random_states(generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    """Read the state of a generator, or of DTensor's tracker those that it has of its own."""
    if generator is not None:
        return {"": generator.get_state()}
    return {name: state.clone() for name, state in random_tracker_states().items()}


def set_random_states(generator: torch.Generator | None, states: dict[str, torch.Tensor]) -> None:
    """Write the state of a generator, or those of DTensor's tracker."""
    if generator is not None:
        generator.set_state(states[""])
        return
    tracked = random_tracker_states()
    tracked.update({name: state.clone() for name, state in states.items() if name in tracked})


class RandomState(Snapshot):
    """Every state that random ops advance: of devices, of generators in arguments, of DTensor's tracker."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        super().__init__(random_states, set_random_states)
        self._has_advanced = False
        self.note(None)  # DTensor's tracker
        self.watch((torch.default_generator, *leaves))

    def watch(self, leaves: Sequence[Any]) -> None:
        """Note the states of generators and devices that were not met before."""
        for leaf in leaves:
            device = leaf if type(leaf) is torch.device else ask_tensor(attrgetter("device"), leaf, None)
            if issubclass(type(leaf), torch.Generator):
                self.note(leaf)
            elif type(device) is torch.device and device.type == "cuda":
                self.note(cuda_generator(device))

    def settle(self) -> None:
        """Note the states that the program's call left behind."""
        super().settle()
        pairs = zip(self._before.values(), self._after, strict=True)
        self._has_advanced = any(
            before.keys() != after.keys() or not all(map(torch.equal, before.values(), after.values()))
            for (_, before), (_, after) in pairs
        )

    def rewind(self) -> None:
        """Put the states back to what they were before the call, where it advanced one."""
        if self._has_advanced:
            super().rewind()


class Gradients(Snapshot):
    """Gradients of leaves: as they were before the call, even of a leaf first met after its backward.

    FSDP2 sets those of its parameters, which no op reads before the optimizer does.

    Args:
        before: leaves that are alive before the call, and their gradients, by the id of the leaf.
    """

    def __init__(self, before: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(attrgetter("grad"), lambda leaf, grad: setattr(leaf, "grad", grad))
        self._alive = before

    def note(self, owner: Any) -> None:
        """Note the gradient of a leaf that was not met before."""
        if id(owner) in self._alive:
            self._before.setdefault(id(owner), self._alive[id(owner)])
        super().note(owner)

    def settle(self) -> None:
        """Note what the program's call left behind, of leaves that no op showed too."""
        for leaf, gradient in self._alive.values():
            if leaf.grad is not gradient:
                self.note(leaf)
        self._alive = {}
        super().settle()


def set_mask(buffer: Any, mask: tuple[Any, int]) -> None:
    """Set the mask of the buffer of a masked partial sum, and how many results still need it."""
    buffer.data, buffer.refcount = mask


def leaves_behind(tensor: torch.Tensor, visited: dict[int, Any]) -> Iterator[torch.Tensor]:
    """Walk the autograd graph from a tensor to leaves that were not met before.

    A tensor that retains its gradient is treated as a leaf. Nothing is found behind a stale view, which no op
    can use while gradients are recorded.
    """
    if ask_tensor(lambda each: each.requires_grad and (each.is_leaf or each.retains_grad), tensor, False):
        yield tensor
    nodes = [ask_tensor(attrgetter("grad_fn"), tensor, None)]
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in visited:
            continue
        visited[id(node)] = node  # held, so that no other node takes its id
        if hasattr(node, "variable"):
            yield node.variable
        nodes.extend(parent for parent, _ in node.next_functions)


class NoCopyError(Exception):
    """What a call changes cannot be put back; the text says why it runs once."""


def is_freed(plain: torch.Tensor) -> bool:
    """Return whether nothing is allocated for the elements of a tensor."""
    return plain.numel() > 0 and plain.untyped_storage().nbytes() == 0


class Copy:
    """What a tensor holds at one moment, less what ``is_free`` says that nothing was allocated for."""

    def __init__(self, tensor: torch.Tensor, is_free: Callable[[torch.Tensor], bool] = is_freed) -> None:
        self.tensor = tensor
        self._parts = [None if is_free(plain) else _part_of(plain) for plain in storages_of(tensor)]

    def restore(self) -> bool:
        """Write it to what the tensor has now, where that lies as it did; tell whether all of it does."""
        is_whole = True
        for plain, part in zip(storages_of(self.tensor), self._parts, strict=False):
            if part is None:
                continue
            storage, layout, region, contents = part
            # This runs between timed calls, and the less there is of it the better.
            if plain.untyped_storage() is not storage or storage.nbytes() != layout[1]:
                if _layout(plain) != layout:
                    is_whole = False
                    continue
                region = _region(plain)
            region.copy_(contents)
        return is_whole


def put_back_all(copies: Iterable[Copy]) -> None:
    """Write copies to their tensors, before a repetition; refuse one that would not find what they hold."""
    if not all(copy.restore() for copy in copies):
        raise NoCopyError("not repeated: a tensor that it writes to was freed, resized or moved meanwhile")


def refuse_uncopyable(tensor: torch.Tensor) -> None:
    """Refuse a tensor that a call writes to and that has no contents to copy, without copying."""
    for plain in storages_of(tensor):
        if kind := ask_tensor(_uncopyable_kind, plain, "wrapped"):
            raise NoCopyError(f"runs once: it writes to a {kind} tensor, whose contents cannot be put back")


def _uncopyable_kind(plain: torch.Tensor) -> str:
    if plain.layout is not torch.strided:
        return str(plain.layout).removeprefix("torch.").lstrip("_")
    if plain.is_nested:
        return "nested"
    return "" if memory_key(plain) else "wrapped"


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describe where a tensor's contents lie, as far as an op may change it."""
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    return tensor.shape, placements, [*map(_layout, storages_of(tensor))]


def _layout(plain: torch.Tensor) -> tuple[Any, ...]:
    size = plain.untyped_storage().nbytes()
    return plain.device, size, plain.storage_offset(), plain.shape, plain.stride()


def _part_of(plain: torch.Tensor) -> tuple[torch.UntypedStorage, tuple[Any, ...], torch.Tensor, torch.Tensor]:
    region = _region(plain)
    return plain.untyped_storage(), _layout(plain), region, _cloned(region)


def _region(plain: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself; of an expanded one each element once, as torch copies to no other."""
    contents = plain.data  # what is copied to it, autograd and version counters do not see
    stride = contents.stride()
    if 0 not in stride:
        return contents
    in_memory = [
        extent if step else min(extent, 1) for extent, step in zip(contents.shape, stride, strict=True)
    ]
    return contents.as_strided(in_memory, stride)


def _cloned(region: torch.Tensor) -> torch.Tensor:
    try:
        return region.clone()
    except (RuntimeError, MemoryError):  # torch has no error of its own for a CPU that is out of memory
        size = region.numel() * region.element_size()
        raise NoCopyError(f"runs once: no copy could be made of the {size:,} bytes that it writes") from None


def keys_of(tensor: torch.Tensor) -> set[Any]:
    """Return what tells the storages of a tensor from all others, also from later ones at their address.

    No weak reference to a tensor that has one: ``torch.utils.swap_tensors`` would refuse it.
    """
    plains = ((plain, storage_of(plain)) for plain in storages_of(tensor))
    return {WeakIdRef(plain) if storage is None else StorageReference(storage) for plain, storage in plains}


class Storages:
    """Which storage every live tensor has at one moment, and how many bytes are allocated for it.

    Torch tells nobody that a storage is freed or resized, or that a tensor is given another one. Tensors with
    a graph behind them are not held, as a graph may be large.

    Args:
        heap: where tensors and optimizers are looked for; one that was looked at before gives what is new.
        known: tensors and optimizers that are looked at besides.
        keys: of storages that are looked at besides, where they are alive.

    Attributes:
        optimizers: that are alive.
    """

    def __init__(
        self, heap: Heap | None = None, known: Iterable[Any] = (), keys: Iterable[StorageReference] = ()
    ) -> None:
        self._heap = heap or Heap()
        self._sizes: dict[StorageReference, int] = {}
        self._tensors: list[tuple[torch.Tensor, StorageReference]] = []
        self.optimizers: list[Optimizer] = []
        found = (*known, *self._heap.instances(torch.Tensor, Optimizer))
        for each in {id(one): one for one in found}.values():
            if issubclass(type(each), Optimizer):
                self.optimizers.append(each)
            else:
                self._note(each)
        for key in keys:
            if (storage := storage_behind(key)) is not None:
                self._sizes.setdefault(key, storage.nbytes())

    def renewed(self) -> Storages:
        """Look again, now."""
        known = (*(tensor for tensor, _ in self._tensors), *self.optimizers)
        return Storages(self._heap, known, self._sizes)

    def _note(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None and storage.device.type != "meta":
            key = StorageReference(storage)
            self._sizes[key] = storage.nbytes()
            if not has_graph(tensor):
                self._tensors.append((tensor, key))

    def gradients(self) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the leaves that autograd gives a gradient, with their gradients, by the id of the leaf."""
        return {id(each): (each, each.grad) for each, _ in self._tensors if each.requires_grad}

    def were_other(self, plain: torch.Tensor) -> bool:
        """Whether a storage had another size then: what it held then, if anything, is not there now."""
        size = plain.untyped_storage().nbytes()
        return is_freed(plain) or any(self._sizes.get(key, size) != size for key in keys_of(plain))

    def refuse_changed(self, call: str) -> None:
        """Refuse to repeat where a call that ran since lost what storages held then."""
        for tensor, key in self._tensors:
            storage = storage_of(tensor)
            if storage is None or StorageReference(storage) != key:
                raise NoCopyError(f"runs once: {call} gave a tensor another storage")
        for key, before in self._sizes.items():
            storage = storage_behind(key)
            if before and storage is not None and storage.nbytes() != before:
                how = "resized" if storage.nbytes() else "freed"
                raise NoCopyError(f"runs once: {call} {how} the storage of a tensor")

    def grown(self) -> Grown:
        """Copy each storage that was free then, and is not now."""
        free = (storage_behind(key) for key, before in self._sizes.items() if not before)
        return Grown(storage for storage in free if storage is not None and storage.nbytes())


class Grown:
    """Storages that were free before a call and that it left allocated: free again before each repetition.

    Less those that a repetition does not allocate itself: it may know of them by a Python object, as FSDP2
    does, which is not put back. What reads one of them while it is free ends the process.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage] = ()) -> None:
        self._allocated = {StorageReference(each): (each, _cloned(bytes_of(each))) for each in storages}

    def rewind(self) -> None:
        """Free them all."""
        for storage, _ in self._allocated.values():
            storage.resize_(0)

    def restore(self) -> None:
        """Allocate them, and write what the program's call left in them."""
        for storage, contents in self._allocated.values():
            storage.resize_(contents.numel())
            bytes_of(storage).copy_(contents)

    def keep(self, tensors: Iterable[torch.Tensor] | None = None) -> None:
        """Leave those allocated from now on that are free: all, or those that something is about to read."""
        if not (before := self._allocated):
            return
        read = set(before) if tensors is None else {key for each in tensors for key in keys_of(each)}
        self._allocated = {key: before[key] for key in read & set(before) if not before[key][0].nbytes()}
        self.restore()
        self._allocated = {key: each for key, each in before.items() if key not in self._allocated}


class Replay:
    """What a program could notice of a call that is made again: saved before it or after, and put back.

    Of an op, and of a conversion, one copy is held of what it writes to, and taken after the program's call:
    each repetition starts from what that left behind, as dispatch does not depend on what tensors hold.

    Of a whole callable is saved what every tensor that it writes to holds, before the program's call and
    after it. A tensor that the callable made in its first call and kept, as an optimizer keeps its moments,
    is saved when the first repetition is about to write to it: as the program's call left it.

    Args:
        leaves: of the arguments.
        storages: of all tensors, before a whole callable runs; None before an op or a conversion.
        why_not_repeatable: of an op that is known to run once.

    Attributes:
        grown: storages that the program's call left allocated, and that were free before it.
        why_not_repeatable: why the call runs once; empty where it can be repeated.
    """

    def __init__(
        self, leaves: Sequence[Any], storages: Storages | None = None, why_not_repeatable: str = ""
    ) -> None:
        self.why_not_repeatable = why_not_repeatable
        self.masks = Snapshot(attrgetter("data", "refcount"), set_mask)
        self.gradients = Gradients(storages.gradients() if storages else {})
        self.random, self.grown = RandomState(leaves), Grown()
        self._versions = Snapshot(version_of, set_version)
        self._specs = Snapshot(spec_of, set_spec, DTensor)
        self._optimizers = Snapshot(dict, dict.update, dict)
        self._storages = storages
        self._leaves = leaves if storages is None else ()
        self._places: set[Any] = set()
        self._saved: list[tuple[torch.Tensor, Copy | None, tuple[Any, ...]]] = []
        self._made: list[Copy] = []
        self._before: list[Copy] = []
        self._after: list[Copy] = []

    def watching_masks(self) -> AbstractContextManager[None]:
        """Note every mask of a cached plan that is about to change: no op tells of it."""
        return observe.before("mask", lambda buffer, *_: self.masks.note(buffer))

    def note_version(self, tensor: torch.Tensor) -> None:
        """Note how often a tensor, and what holds its contents, was written to, as autograd counts."""
        for each in (tensor, *storages_of(tensor)):
            if version_of(each) is not None:
                self._versions.note(each)

    def save(self, tensor: torch.Tensor) -> None:
        """Save what a tensor is, and of a whole callable what it holds, before the call writes to it."""
        if self.why_not_repeatable:
            return
        with self._refusing():
            if self._is_new(tensor):
                copy = Copy(tensor, self._storages.were_other) if self._storages else None
                self._saved.append((tensor, copy, layout_of(tensor)))

    def save_made(self, tensor: torch.Tensor) -> None:
        """Save what the program's call left in a tensor, before the first repetition writes to it."""
        if self._is_new(tensor):
            self._made.append(Copy(tensor, self._storages.were_other if self._storages else is_freed))
            self._specs.note(tensor)

    def forget(self) -> None:
        """Hold nothing any more: the call raised, and its traceback, which may live on, must not either."""
        vars(self).clear()

    def settle(self) -> None:
        """Save what the program's call left behind, or find what it left that cannot be put back."""
        with self._refusing():
            for leaf in self._leaves:
                self._specs.note(leaf)
            self._settle_states()
            for tensor, before, layout in self._saved:
                if before is None or not all(map(is_freed, storages_of(tensor))):
                    if layout_of(tensor) != layout:
                        raise NoCopyError("runs once: it changed the layout of a tensor that it wrote to")
                    self._after.append(Copy(tensor))
                    self._before.append(before or self._after[-1])
                    self._specs.note(tensor)
            # The last saved goes first: a tensor may have been saved after a view of it was written to.
            self._before.reverse()
            self._saved.clear()
            if self._storages:
                self._storages.refuse_changed("it")
                self.grown = self._storages.grown()
                self._storages = self._storages.renewed()
                for optimizer in self._storages.optimizers:
                    for state in ask(lambda each: list(each.state.values()), optimizer, list[Any]()):
                        self._optimizers.note(state)

    def settle_repetition(self) -> None:
        """Note what the first repetition allocated, where there may be another."""
        self.grown.keep()
        if self._storages:
            self._storages.refuse_changed("its repetition")

    def settle_again(self) -> None:
        """Save what calls of the program left behind that came later, where they allow a repetition."""
        if self.why_not_repeatable:
            return
        with self._refusing():
            self._settle_states()
            if self._storages:
                self._storages.refuse_changed("a later call")
            self._after = [Copy(copy.tensor) for copy in (*self._made, *self._after)]

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Note why the call cannot be repeated, where that is found."""
        try:
            with unnoticed():
                yield
        except NoCopyError as error:
            self.why_not_repeatable = str(error)
            self._saved.clear()  # nothing will be put back: give the memory free

    @property
    def must_rewind(self) -> bool:
        """Whether an op finds something that must be put back first; random states need not be."""
        return bool(self._before) or bool(self.masks)

    def rewind_op(self) -> None:
        """Put back what a repetition of an op must find: next to nothing, as it runs between timed calls."""
        self.masks.rewind()
        put_back_all(self._before)

    def rewind(self) -> None:
        """Put everything back to what it was before the call; what it made itself, to what it left."""
        with unnoticed():
            self.masks.rewind()
            self._optimizers.rewind()
            put_back_all((*self._made, *self._before))
            self.grown.rewind()
            self._versions.rewind()
            self.gradients.rewind()
            self.random.rewind()

    def restore(self) -> None:
        """Leave behind what the program's own call left behind, whatever fails of it."""
        changed: list[Snapshot | Grown | Copy] = [self.masks, self._optimizers, self.grown]
        changed += (*self._made, *self._after, self._versions, self._specs, self.gradients, self.random)
        with unnoticed(), ExitStack() as last_first:
            for state in reversed(changed):
                last_first.callback(state.restore)

    def _settle_states(self) -> None:
        for state in (self.random, self.gradients, self.masks, self._versions, self._specs, self._optimizers):
            state.settle()

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that is about to be written to shows other memory than those before."""
        refuse_uncopyable(tensor)
        if self._storages:
            self.note_version(tensor)
        places = {memory_key(plain) for plain in storages_of(tensor)}
        is_new = not places <= self._places
        self._places |= places
        return is_new
