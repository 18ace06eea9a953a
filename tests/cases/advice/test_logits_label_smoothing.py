"""Right: loss_parallel() takes neither label smoothing nor class probabilities (torch's documentation): no advice to use it there.

With label smoothing it raises. With probabilities it returns a wrong gradient, which `--dtdispatch-nproc 2` shows; the other cases are right.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

CASES = {
    "plain": {},
    "ignore": {"ignore_index": 3},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weight": {},
    "smoothing": {"label_smoothing": 0.1},
    "probabilities": {},
}
UNSUPPORTED = ("smoothing", "probabilities")


def is_right(step, gradient):
    try:
        with loss_parallel():
            return torch.allclose(step().full_tensor(), gradient, rtol=1e-3, atol=1e-7)
    except RuntimeError:
        with loss_parallel():  # its end, which the error skipped
            return False


@pytest.mark.parametrize("case", CASES)
def test_logits(dtdispatch, device_mesh, case):
    torch.manual_seed(0)
    options, whole = dict(CASES[case]), torch.rand(64, 32768, requires_grad=True)
    target = torch.rand(64, 32768).softmax(1) if case == "probabilities" else torch.randint(0, 32768, (64,))
    if case == "weight":
        options["weight"] = torch.rand(32768)
    cross_entropy(whole, target, **options).sum().backward()
    logits = distribute_tensor(whole.detach(), device_mesh, [Shard(1)]).requires_grad_()
    target = distribute_tensor(target, device_mesh, [Replicate()])
    if case == "weight":
        options["weight"] = distribute_tensor(options["weight"], device_mesh, [Replicate()])

    def step():
        cross_entropy(logits, target, **options).sum().backward()
        gradient, logits.grad = logits.grad, None
        return gradient

    works = is_right(step, whole.grad)
    if dist.get_backend() != "fake":  # a fake all_reduce adds nothing
        assert works == (case not in UNSUPPORTED)
    steps = dtdispatch.steps(step, name=case)
    if dtdispatch.enabled:
        if case in UNSUPPORTED:
            assert not any("loss_parallel" in advice.change for advice in steps.advice)
        elif case == "plain":  # the control: 8 MiB of logits are gathered
            assert any(advice.count for advice in steps.advice)
