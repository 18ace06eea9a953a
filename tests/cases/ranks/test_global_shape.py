# from_local without run_check: rank 0 has 5 rows, ranks 1 and 2 have 4, so that the ranks compute the global shapes [15,4], [12,4] and [12,4] (in truth [13,4]). A line says so.
import re

pytest_plugins = "pytester"
PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

def test_sum(dtdispatch, device_mesh):
    rows = {rows}
    t = DTensor.from_local(torch.rand(rows, 4), device_mesh, [Shard(0)], run_check=False)
    dtdispatch.steps(lambda: (t * 2).sum().full_tensor(), name="sum")
"""


def lines_about_shapes(pytester, rows):
    pytester.makepyfile(test_inner=PROGRAM.format(rows=rows))
    flags = "--dtdispatch-backend=gloo", "--dtdispatch-nproc=3"
    lines = pytester.runpytest_subprocess("--dtdispatch", *flags).outlines
    return [
        line
        for line in lines
        if re.search(r"(?i)\bshapes?\b", line) and re.search("(?i)differ|disagree|rank", line)
    ]


def test_equal(pytester):
    assert lines_about_shapes(pytester, "4") == []


def test_different(pytester):
    assert lines_about_shapes(pytester, "5 if dist.get_rank() == 0 else 4"), "no line about the global shape"
