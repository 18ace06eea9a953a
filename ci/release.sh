#!/usr/bin/env bash
# release.sh [FOLDER]: build sdist and wheel into an empty folder, check both, and do with the wheel what the README says.
# On a tag such as v0.1.0 the version must be that of the tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
dist=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
if [[ -n $(ls -A "$dist") ]]; then
    echo "$dist is not empty: what it has would be published too" >&2
    exit 2
fi
"$python" -m pip install --quiet 'build>=1.2' 'twine>=6'
"$python" -m build --outdir "$dist"
"$python" -m twine check --strict "$dist"/*
wheels=("$dist"/*.whl)
if [[ ${GITHUB_REF_TYPE:-} == tag && ${wheels[0]##*/} != "pytest_dtdispatch-${GITHUB_REF_NAME#v}-"* ]]; then
    echo "${wheels[0]##*/} is not of the tag $GITHUB_REF_NAME" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" # nothing of the checkout is imported from here
"$python" -m venv fresh
fresh/bin/python -m pip install --quiet "${wheels[0]}"
fresh/bin/python -m pytest -q --dtdispatch --dtdispatch-rounds 5 --pyargs "pytest_dtdispatch.suite.test_ops::test_add[4]" | tee said.txt
grep --quiet "rows are proved by the cache counters" said.txt
fresh/bin/dtdispatch --version
