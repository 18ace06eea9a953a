"""Verified steps in runs of pytest: lines, limits, files, refusals, and whole tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_dtdispatch.verify.mode import FLAGS
from pytest_dtdispatch.verify.model import Verified
from tests.plugin_runs import (
    IMPORTS,
    MEASURED,
    Judged,
    assert_mistakes,
    assert_reported_once,
    judged,
    measure,
    run,
    text_of,
)
from tests.probes import FSDP_WITHOUT_CUDA, LOCAL_TENSOR, needs
from tests.rank_runs import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs(LOCAL_TENSOR)]

LOCAL = "--dtdispatch-backend=local"
LOSS = f"""{IMPORTS}
from torch.nn import functional

def loss_of(mesh, rows):
    x = sharded(mesh, rows, 6)
    return lambda: functional.mse_loss(x, x * 0.5)
"""
WRONG = f"""{LOSS}
def test_wrong(dtdispatch, device_mesh):
    dtdispatch.verify(loss_of(device_mesh, 5), name="loss")
"""
RIGHT = """
def test_right(dtdispatch, device_mesh):
    verified = dtdispatch.verify(loss_of(device_mesh, 8), steps=2, name="loss")
    assert verified.wrong == 0
    assert verified.compared == verified.calls == 4
"""
ASSERTED = f"""{LOSS}
def test_wrong(dtdispatch, device_mesh):
    assert dtdispatch.verify(loss_of(device_mesh, 5), name="loss").wrong == 0
"""
LINE = "mse_loss.default(f32[5,6]S0, f32[5,6]S0)@4: values, at test_it.py:22"


def source(pytester: pytest.Pytester, text: str) -> None:
    pytester.makepyfile(test_it=text)


def verified(pytester: pytest.Pytester, text: str, *flags: str, **outcomes: int) -> dict[str, Verified]:
    """Measure a file on simulated ranks; return its verified steps by name."""
    source(pytester, text)
    return verified_of(judged(pytester, *MEASURED, LOCAL, *flags, **outcomes))


def verified_of(ran: Judged) -> dict[str, Verified]:
    return {result.name: result for kind, _, result in ran.run.each_result() if kind == Verified.kind}


def test_wrong_op_without_limit_is_only_reported(pytester: pytest.Pytester) -> None:
    source(pytester, WRONG)
    files = ("--dtdispatch-export=json:r.json", "--dtdispatch-export=csv:r.csv")
    text = " ".join(text_of(measure(pytester, LOCAL, *files, passed=1)).split())
    assert "test_it.py::test_wrong: loss: 2 of 2 ops compared, 1 wrong" in text
    assert LINE in text
    assert "(forward): nan instead of 0." in text
    [result] = json.loads((pytester.path / "r.json").read_text())["results"]
    assert result["metrics"] == {"wrong": 1}
    assert (result["kind"], result["calls"], result["compared"]) == ("verified", 2, 2)
    assert [each["fault"] for each in result["wrong_ops"]] == ["values"]
    assert "test_it.py::test_wrong::loss,wrong,1" in (pytester.path / "r.csv").read_text()
    (pytester.path / "expected.csv").write_text("test_it.py::test_wrong::loss,wrong,1,0\n")
    measure(pytester, LOCAL, "--dtdispatch-expected=expected.csv", passed=1)


def test_limit_fails_the_test_and_lists_the_op(pytester: pytest.Pytester) -> None:
    source(pytester, WRONG + RIGHT)
    text = text_of(measure(pytester, LOCAL, "--dtdispatch-max=wrong=0", failed=1, passed=1))
    assert "wrong=0, and there are 1 (2 of 2 ops compared)" in text
    assert LINE in text


def test_assertion_lists_the_op(pytester: pytest.Pytester) -> None:
    source(pytester, ASSERTED)
    text = text_of(measure(pytester, LOCAL, failed=1))
    assert "assert 1 == 0" in text
    assert LINE in text


def test_nothing_compared_does_not_pass(pytester: pytest.Pytester) -> None:
    source(
        pytester,
        f"{IMPORTS}\ndef test_plain(dtdispatch, device_mesh):\n"
        "    x = torch.rand(8)\n    dtdispatch.verify(lambda: x + x)\n",
    )
    ran = judged(pytester, *MEASURED, LOCAL, "--dtdispatch-max=wrong=0", failed=1)
    [verdict] = ran.run.gates[0].verdicts
    assert verdict.details == ("wrong=0 judged nothing: no op was compared; 1 on plain tensors",)


def test_reasons_are_counted(pytester: pytest.Pytester) -> None:
    body = """
def test_random(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    whole = a.redistribute(placements=[torch.distributed.tensor.Replicate()])
    local = torch.distributed.tensor.DTensor.from_local
    ranks = torch.distributed.tensor.Replicate()

    def step():
        b = torch.rand_like(a) + torch.empty_like(a).fill_(1)
        mine = local(a.to_local(), device_mesh, [ranks], run_check=False)
        return mine * 2

    dtdispatch.verify(step)
"""
    [result] = verified(pytester, IMPORTS + body, passed=1).values()
    assert result.skipped == {
        "random": 1,
        "without a defined result": 1,
        "with an argument that has no full value": 1,
    }
    [note] = result.notes
    assert note.startswith("an argument of mul.Tensor(f32[2,8]R)@4, at test_it.py:")
    assert "labelled replicated, and ranks differ" in note


def test_mistakes_are_one_line(pytester: pytest.Pytester) -> None:
    mistakes = [
        ("dtdispatch.verify(lambda x: x)", "the step takes arguments (x), and verify() passes none"),
        ("dtdispatch.verify(lambda: a + a, steps=0)", "verify(): steps=0 is not a whole number"),
        (
            "with dtdispatch.capture():\n    dtdispatch.verify(lambda: a + a)  # here",
            "verify(name='step') inside a capture would be measured twice",
        ),
        ("dtdispatch.verify(lambda: a + a)", "collectives of a fake process group move no data: add"),
    ]
    assert_mistakes(pytester, mistakes, "--dtdispatch")


def test_error_names_the_last_compared_op(pytester: pytest.Pytester) -> None:
    source(
        pytester,
        f"{IMPORTS}\ndef test_it(dtdispatch, device_mesh):\n    a = sharded(device_mesh)\n\n    def step():\n"
        "        a + a\n        raise ValueError('own')\n\n    dtdispatch.verify(step)\n",
    )
    result = measure(pytester, LOCAL, failed=1)
    assert_reported_once(result, "ValueError: own")
    assert "the last compared op: add.Tensor(f32[8,8]S0, f32[8,8]S0)@4, at test_it.py:" in text_of(result)


def test_without_the_flag_steps_only_run(pytester: pytest.Pytester) -> None:
    source(
        pytester,
        f"{LOSS}\ndef test_it(dtdispatch, device_mesh):\n    ran = []\n"
        "    verified = dtdispatch.verify(lambda: ran.append(1), steps=3)\n"
        "    assert (len(ran), verified.calls, verified.wrong) == (3, 0, 0)\n",
    )
    run(pytester, passed=1)


def test_whole_tests_are_verified(pytester: pytest.Pytester) -> None:
    source(
        pytester,
        f"{LOSS}\ndef test_wrong(device_mesh):\n    loss_of(device_mesh, 5)()\n\n"
        "def test_none():\n    torch.ones(3) + 1\n",
    )
    flags = (*MEASURED, "--dtdispatch-all", "--dtdispatch-metric=verify")
    ran = judged(pytester, *flags, LOCAL, "--dtdispatch-max=wrong=0", failed=1, passed=1)
    assert ran.verdicts() == {"regressed": 1}
    [result] = verified_of(judged(pytester, *flags, passed=2)).values()
    assert (result.calls, result.compared, result.wrong) == (2, 0, 0)
    assert result.skipped == {f"on a fake process group, whose collectives move no data: {FLAGS}": 2}


def test_metric_verifies_every_method(pytester: pytest.Pytester) -> None:
    body = """
def test_it(dtdispatch, device_mesh):
    step = loss_of(device_mesh, 5)
    with dtdispatch.capture():
        step()
    dtdispatch.call(step, name="call")
    assert dtdispatch.steps(step, name="steps").steps == ()
    dtdispatch.verify(step, name="verify")
    dtdispatch.compare({"a": step, "b": step}, equal=lambda one, other: True)
"""
    found = verified(pytester, LOSS + body, "--dtdispatch-metric=verify", passed=1)
    assert list(found) == ["capture 1", "call", "steps", "verify", "compare[a]", "compare[b]"]
    assert all((each.calls, each.compared, each.wrong) == (2, 2, 1) for each in found.values())


def test_steps_of_the_suite_are_verified(pytester: pytest.Pytester) -> None:
    suite = ("--pyargs", "pytest_dtdispatch.suite", "-k", "decode_steps")
    [result] = verified_of(
        judged(pytester, *MEASURED, LOCAL, "--dtdispatch-metric=verify", *suite, passed=1)
    ).values()
    assert result.compared == result.calls > 0
    assert result.wrong == 0


def test_other_measurements_beside_it(pytester: pytest.Pytester) -> None:
    body = """
def test_it(dtdispatch, device_mesh):
    step = loss_of(device_mesh, 8)
    counted = dtdispatch.steps(step)
    dtdispatch.verify(step)
    assert dtdispatch.steps(step, name="again").steps == counted.steps
    with dtdispatch.capture() as results:
        step()
    dtdispatch.budget(step, steps=1)
    assert len(results.measurements()) == 2
"""
    source(pytester, LOSS + body)
    measure(pytester, LOCAL, passed=1)


def test_compare_names_the_first_wrong_op(pytester: pytest.Pytester) -> None:
    body = """
def test_it(dtdispatch, device_mesh):
    x = torch.rand(5, 6)
    whole, rows = (distribute_tensor(x, device_mesh, [each]) for each in (Replicate(), Shard(0)))
    named = {"whole": whole, "rows": rows}.items()
    dtdispatch.compare({name: lambda x=x: functional.mse_loss(x, x * 0.5) for name, x in named})
"""
    source(pytester, f"from torch.distributed.tensor import Replicate{LOSS}{body}")
    text = text_of(measure(pytester, LOCAL, failed=1))
    assert "; the first wrong op of 'rows': mse_loss.default(f32[5,6]S0, f32[5,6]S0)@4: values" in text


@needs(FSDP_WITHOUT_CUDA)
def test_fsdp_on_simulated_ranks_is_refused_in_one_line(pytester: pytest.Pytester) -> None:
    body = """
def test_it(dtdispatch, device_mesh):
    model = torch.nn.Linear(8, 8)
    torch.distributed.fsdp.fully_shard(model, mesh=device_mesh)
    dtdispatch.verify(lambda: model(torch.rand(4, 8)).sum().backward())
"""
    source(pytester, f"{IMPORTS}\nimport torch.distributed.fsdp\n{body}")
    text = text_of(measure(pytester, LOCAL, failed=1))
    assert "FSDP2 does not run on simulated ranks: add --dtdispatch-backend gloo --dtdispatch-nproc 2" in text


@pytest.mark.long
def test_ranks_are_compared_and_agree(tmp_path: Path) -> None:
    body = """
def test_wrong(dtdispatch, device_mesh):
    dtdispatch.verify(loss_of(device_mesh, 5), name="loss")

def test_different(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def step():
        a + a
        a * a if dist.get_rank() else a - a
        a + 1

    verified = dtdispatch.verify(step, name="different")
    assert (verified.calls, verified.compared) == (3, 1)
"""
    (tmp_path / "test_it.py").write_text(LOSS + body)
    result = run_ranks(tmp_path, 2, "--dtdispatch-backend=gloo")
    assert result.status == 0, result.text
    assert "loss: 2 of 2 ops compared, 1 wrong" in result.text
    assert "after ranks ran different ops (rank 0 at sub.Tensor" in result.text
