# A subclass of Tensor that is created by super().__new__(cls, tensor), as memory-mapped tensors are: torch
# rejects it under any dispatch mode. A measured test computes the results of an unmeasured one.
import pytest
import torch

from pytest_dtdispatch.errors import DtDispatchError


class Named(torch.Tensor):
    @staticmethod
    def __new__(cls, source):
        return super().__new__(cls, source)


def make():
    return Named(torch.ones(2, 2).clone()).sum().item()


def check(run):
    try:
        run()
    except DtDispatchError as error:
        if "Named" not in str(error):
            pytest.fail(f"no name of the class: {error}")
    except RuntimeError as error:
        pytest.fail(f"torch's own error: {str(error)[:80]}")


@pytest.mark.parametrize("method", ["steps", "budget", "call"])
def test_method(dtdispatch, device_mesh, method):
    check(lambda: getattr(dtdispatch, method)(make))


def test_capture(dtdispatch, device_mesh):
    def run():
        with dtdispatch.capture():
            assert make() == 4.0

    check(run)
