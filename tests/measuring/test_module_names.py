"""Names of modules, as the program knows them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import Linear, Module, Sequential

from pytest_dtdispatch.measuring.places import ModuleNames

pytestmark = pytest.mark.torch


def test_a_module_has_its_full_name_and_the_outermost_that_of_its_class() -> None:
    net, names = Sequential(Linear(2, 2), Sequential(Linear(2, 2))), ModuleNames()
    assert [names.name([module, net]) for module in net.modules()] == ["Sequential", "0", "1", "1.0"]


def test_a_module_that_is_held_twice_has_the_first_name() -> None:
    shared = Linear(2, 2)
    assert ModuleNames().name([shared, Sequential(shared, shared)]) == "0"


def test_wrappers_are_no_part_of_a_name() -> None:
    inner = Linear(2, 2)
    net = torch.compile(Sequential(checkpoint_wrapper(Sequential(inner))), backend="eager")
    names = ModuleNames()
    assert names.name([inner, net]) == "0.0"
    assert names.name([net]) == "Sequential"


def test_a_module_that_was_added_since_is_found() -> None:
    net, names, added = Sequential(Linear(2, 2)), ModuleNames(), Linear(2, 2)
    names.name([net])
    net.append(added)
    assert names.name([added, net]) == "1"


def test_a_module_that_the_outermost_does_not_hold_is_part_of_the_next_one() -> None:
    net, other, names = Sequential(Sequential()), Linear(2, 2), ModuleNames()
    assert names.name([other, net[0], net]) == "0"
    assert names.name([other, net]) == "Sequential"
    assert names.known_name([other, net[0]]) == "0"


def test_a_part_that_is_called_alone_keeps_its_name_in_the_whole() -> None:
    net, names = Sequential(Sequential(Linear(2, 2))), ModuleNames()
    part: Module = net[0]
    assert names.known_name([part[0], part]) == "0"  # type: ignore[index]
    names.name([net])
    assert names.known_name([part[0], part]) == "0.0"  # type: ignore[index]


def test_a_parameter_belongs_to_the_module_that_holds_it() -> None:
    net, names = Sequential(Linear(2, 2), Linear(2, 2)), ModuleNames()
    names.name([net])
    assert names.name_of_owner(net[1].bias) == "1"
    assert names.name_of_owner(torch.rand(2)) == ""


def test_nothing_is_kept_alive() -> None:
    net, names = Sequential(Linear(2, 2)), ModuleNames()
    names.name([net[0], net])
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert names.name_of_owner(torch.rand(2)) == ""
