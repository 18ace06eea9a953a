"""Print the table of ops that DTensor computes silently wrong, which ``docs/verify.md`` has.

``python benchmarks/verify_ops.py [words of names] [--shard 1/2] [--write]`` verifies two samples of each op
of torch's op database, and its gradients, on 2 and 4 simulated ranks, with each dimension sharded. It takes
about 20 minutes. ``--write`` replaces what the table of the page says of this version of torch. Rows are ops
of the dispatcher: a function that calls several is listed by the op of these that is wrong.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_map

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.verify.mode import Verifier
from pytest_dtdispatch.verify.model import Verified, WrongOp
from tests.sweep.cases import Sample, is_dense, ops, samples_of

PAGE = Path(__file__).parents[1] / "docs" / "verify.md"
MAX_S = 20  # of one case: torch's search for a sharding may take minutes
RANKS = (2, 4)
BEGIN, END = "<!-- table -->\n", "<!-- end -->"
VERSION = ".".join(torch.__version__.split(".")[:2])


class Row(NamedTuple):
    """A row of the table.

    Args:
        op: name of the op.
        fault: kind of the error.
        placements: placements of its arguments.
    """

    op: str
    fault: str
    placements: str


class LateError(Exception):
    """A case took too long."""


def late(*_: object) -> None:
    raise LateError


def place(sample: Sample, mesh: DeviceMesh, dim: int) -> Sample:
    """Return a sample whose tensors are sharded in a dimension, or replicated if they have fewer."""

    def distribute(leaf: Any) -> Any:
        if not is_dense(leaf):
            return leaf
        placement = Shard(dim) if dim < leaf.ndim else Replicate()
        values = torch.empty_like(leaf, requires_grad=False).copy_(leaf.detach())  # on each simulated rank
        tensor = distribute_tensor(values, mesh, [placement])
        return tensor.requires_grad_(leaf.requires_grad)

    args, kwargs = tree_map(distribute, (sample.args, sample.kwargs))
    return Sample(args, kwargs)


def verify(op: Any, sample: Sample, mesh: DeviceMesh, dim: int) -> tuple[Verified, str]:
    """Verify an op and its gradients; return the result, and the type of an exception."""
    verifier, error = Verifier(ResultStore()), ""
    signal.alarm(MAX_S)
    try:
        at = place(sample, mesh, dim)
        with verifier:
            result = op.op(*at.args, **at.kwargs)
            leaves = result if isinstance(result, (tuple, list)) else [result]
            trained = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
            if trained:
                torch.autograd.backward(trained, [torch.ones_like(each) for each in trained])
    except Exception as raised:
        error = type(raised).__name__
    finally:
        signal.alarm(0)
    return verifier.result(op.full_name), error


def verified(words: list[str], shard: str) -> Iterator[tuple[str, Verified, str]]:
    """Yield the result of each case of ops whose names have one of these words."""
    first, _, count = shard.partition("/")
    for name in list(ops())[int(first) - 1 :: int(count)]:
        op = ops()[name]
        is_chosen = not words or any(word in name for word in words)
        if not is_chosen or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        samples = samples_of(name, torch.float32, op.supports_autograd)  # not in a simulation
        for ranks in RANKS:
            owner = ProcessGroupOwner()
            mesh = owner.mesh(MeshSpec((ranks,), "cpu", "local"))
            try:
                for sample in samples:
                    dims = max((each.ndim for each in sample.tensors()), default=0)
                    for dim in range(min(dims, 3)):
                        yield (name, *verify(op, sample, mesh, dim))
            finally:
                owner.close()


def row_of(wrong: WrongOp) -> Row:
    """Return the row of a wrong op: without shapes and ranks."""
    op, _, arguments = wrong.op.partition("(")
    placements = re.findall(r"\[[^\[\]]*\]((?:S\d+|R|P(?:\(\w+\))?|<[^>]*>)+)", arguments)
    return Row(op.removesuffix(".default"), str(wrong.fault), ", ".join(placements))


def rows_of(page: str) -> dict[Row, set[str]]:
    """Return the rows of the page's table, one for each choice of placements, with their torch versions."""
    lines = re.findall(r"^\| `(.+)` \| (.+) \| (.*) \| ([\d., ]+) \|$", page, re.MULTILINE)
    return {
        Row(op, fault, each): {*versions.split(", ")}
        for op, fault, placements, versions in lines
        for each in placements.split("; ")
    }


def table_of(rows: Mapping[Row, Collection[str]]) -> list[str]:
    """Return the lines of the table, with one row for each op, kind and group of versions."""
    in_order = {row: sorted(rows[row], key=lambda version: int(version[2:])) for row in sorted(rows)}
    groups = grouped(
        ((row.op, row.fault, ", ".join(versions)), row.placements) for row, versions in in_order.items()
    )
    texts = [
        f"| `{op}` | {fault} | {'; '.join(each)} | {versions} |"
        for (op, fault, versions), each in groups.items()
    ]
    return ["| op | what is wrong | placements | torch |", "|---|---|---|---|", *texts]


def main(arguments: list[str]) -> None:
    """Print the table, and each wrong call to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", default=[])
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.write and (chosen.words or chosen.shard != "1/1"):
        parser.error("--write needs all ops: omit words and --shard")
    signal.signal(signal.SIGALRM, late)
    warnings.simplefilter("ignore")
    rows, names = set[Row](), set[str]()
    cases = compared = raised = 0
    for name, result, error in verified(chosen.words, chosen.shard):
        names.add(name)
        cases, compared, raised = cases + 1, compared + result.compared, raised + bool(error)
        rows |= {*map(row_of, result.wrong_ops)}
        for wrong in result.wrong_ops:
            print(f"{name}: {wrong}", file=sys.stderr, flush=True)
    print(f"{len(names)} entries, {cases} cases, {compared:,} ops compared, {raised} cases raised")
    text = PAGE.read_text()
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    versions = {row: of_row - {VERSION} for row, of_row in rows_of(text).items()} if chosen.write else {}
    for row in rows:
        versions[row] = versions.get(row, set()) | {VERSION}
    table = "\n".join(table_of({row: of_row for row, of_row in versions.items() if of_row}))
    print(table)
    if chosen.write:
        PAGE.write_text(f"{text[:before]}{table}\n{text[after:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
