# Two gloo ranks run one test on a mesh of four, which is simulated, and one on their own mesh. Each row says which.
import json
import re

pytest_plugins = "pytester"
PROGRAM = """
import pytest, torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

@pytest.mark.dtdispatch(mesh=(4,))
def test_four(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 32), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        x.redistribute(placements=[Replicate()])

def test_two(dtdispatch, device_mesh):
    x = distribute_tensor(torch.rand(16, 32), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        x.redistribute(placements=[Replicate()])
"""


def run(pytester):
    pytester.makepyfile(test_inner=PROGRAM)
    flags = "--dtdispatch-nproc=2", "--dtdispatch-rounds=5", "--dtdispatch-export=json:results.json"
    result = pytester.runpytest_subprocess("--dtdispatch", *flags)
    result.assert_outcomes(passed=2)
    return result


def test_table(pytester):
    said = "\n".join(run(pytester).outlines)
    four, two = re.search(r"::test_four(.*?)::test_two(.*?)\n  \d of \d rows", said, re.DOTALL).groups()
    assert re.search("(?i)simulated|fake", four), (
        "the row of the simulated mesh looks like that of real ranks"
    )
    assert not re.search("(?i)simulated|fake", two)


def test_json(pytester):
    run(pytester)
    rows = json.loads((pytester.path / "results.json").read_text())["rows"]
    assert [row.get("backend") for row in rows] == ["fake", "gloo"]
