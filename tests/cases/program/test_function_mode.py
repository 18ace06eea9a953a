# Function modes and subclasses look up torch's methods in tables, pickle them, and ask torch for their names. In
# a counted step they get those of an unmeasured run.
import pickle
from typing import ClassVar

import torch
from torch.overrides import TorchFunctionMode, resolve_name

COPIES = {torch.Tensor.cpu: "to the host"}
NAME = resolve_name(torch.Tensor.cpu)


class Recording(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((func.__name__, COPIES.get(func)))
        return func(*args, **(kwargs or {}))


class Logged(torch.Tensor):
    seen: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append((func.__name__, COPIES.get(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_mode(dtdispatch):
    def step():
        with Recording() as mode:
            torch.ones(2).cpu()
        seen.append(mode.seen)

    seen = []
    dtdispatch.steps(step, warmup=1, steps=1)
    assert seen == [[("ones", None), ("cpu", "to the host")]] * len(seen) != []


def test_subclass(dtdispatch):
    x = torch.ones(2).as_subclass(Logged)
    Logged.seen.clear()
    dtdispatch.steps(lambda: x.cpu(), warmup=1, steps=1)
    assert {*Logged.seen} == {("cpu", "to the host")}


def test_read_once(dtdispatch):
    def step():
        with Recording():
            torch.ones(2).cpu()

    assert dtdispatch.steps(step, warmup=1, steps=1).reads_per_step == int(dtdispatch.enabled)


def test_pickle(dtdispatch):
    def step():
        try:
            pickled.append(pickle.dumps(torch.Tensor.cpu))
        except Exception as error:
            errors.append(repr(error))

    pickled, errors = [], []
    dtdispatch.steps(step, warmup=1, steps=1)
    assert not errors, errors[0]
    assert pickled
    assert all(pickle.loads(each)(torch.ones(2)).tolist() == [1, 1] for each in pickled)


def test_name(dtdispatch):
    names = []
    dtdispatch.steps(lambda: names.append(resolve_name(torch.Tensor.cpu)), warmup=1, steps=1)
    assert {*names} == {NAME}
