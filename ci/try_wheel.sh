#!/usr/bin/env bash
# try_wheel.sh [FOLDER]: install the wheel in a fresh environment, and do in an empty folder what the README says.
set -euo pipefail
dist=$(cd "${1:-dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python}" -m venv fresh
fresh/bin/python -m pip install --quiet "$dist"/*.whl
cat >test_add.py <<'TEST'
from torch.distributed.tensor import Shard, distribute_tensor
import torch


def test_add(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(512, 512), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
TEST
fresh/bin/python -m pytest -q test_add.py
fresh/bin/python -m pytest -q --dtdispatch --dtdispatch-rounds 5 test_add.py | tee said.txt
grep --quiet "rows are proved by the cache counters" said.txt
fresh/bin/dtdispatch --version
fresh/bin/python -m pytest -q --dtdispatch --pyargs pytest_dtdispatch.suite.test_ops --collect-only
