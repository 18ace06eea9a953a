"""Known errors of DTensor are reported with their op, and the same programs written rightly are not."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from tests.probes import LOCAL_TENSOR, needs
from tests.verify.programs import PROGRAMS, ROWS, WHOLE, random, verified

pytestmark = [pytest.mark.torch, needs(LOCAL_TENSOR)]

PLAIN = torch.ones(8, 4)  # created outside of a simulation


@pytest.mark.parametrize("name", PROGRAMS)
def test_error_is_reported_with_its_op(name: str, simulated: DeviceMesh) -> None:
    program = PROGRAMS[name]
    if program.right is not None:  # some versions of torch compute it
        result = program.run(simulated, True).full_tensor()
        if torch.equal(torch.isclose(result, program.right()), torch.tensor(True)):
            assert verified(lambda: program.run(simulated, True)).wrong_ops == ()
            return
    found = verified(lambda: program.run(simulated, True))
    assert [
        each for each in found.wrong_ops if each.op.startswith(program.op) and each.fault == program.fault
    ]
    assert all(each.place.file.endswith("programs.py") for each in found.wrong_ops)


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_program_has_no_wrong_op(name: str, simulated: DeviceMesh) -> None:
    found = verified(lambda: PROGRAMS[name].run(simulated, False))
    assert found.wrong_ops == ()
    assert found.compared > 0


@pytest.mark.parametrize("is_flat", [True, False])
def test_redistribution_over_a_flattened_mesh_is_wrong(group_owner: ProcessGroupOwner, is_flat: bool) -> None:
    mesh = group_owner.mesh(MeshSpec((2, 2), "cpu", "local"), ("dp", "tp"))
    if is_flat:
        mesh["dp", "tp"]._flatten("all")
    x = distribute_tensor(torch.arange(10.0).view(5, 2), mesh, [ROWS, ROWS])
    found = verified(lambda: x.redistribute(placements=[WHOLE, WHOLE]))
    assert [each.fault for each in found.wrong_ops] == (["values"] if is_flat else [])


def test_tensor_shared_by_simulated_ranks_is_not_compared(simulated: DeviceMesh) -> None:
    a = random(simulated, 8, 4, placement=WHOLE)
    shared = DTensor.from_local(torch.ones(8, 4, device="cpu"), simulated, [WHOLE], run_check=False)
    plain = DTensor.from_local(PLAIN, simulated, [WHOLE], run_check=False)
    assert verified(lambda: shared.add_(a)).compared == 1
    found = verified(lambda: plain.add_(a))  # torch adds once for each rank
    assert found.skipped == {"that write to a tensor which simulated ranks share": 1}
    assert not found.wrong_ops


def test_op_without_memory_is_not_compared(simulated: DeviceMesh) -> None:
    huge = DTensor.from_local(torch.ones(1).expand(2**50), simulated, [WHOLE], run_check=False)
    small = random(simulated, 8, 4, placement=WHOLE)
    found = verified(lambda: (huge.unsqueeze(0), small + small))
    [(reason, number)] = found.skipped.items()
    assert number == 1
    assert reason.startswith("without memory for full values")
    assert str(2**52) in reason
    assert (found.calls, found.compared, found.wrong_ops) == (2, 1, ())
