#!/usr/bin/env bash
# release.sh [FOLDER]: build sdist and wheel into an empty folder, check both, and try each in an empty environment.
# On a tag such as v0.1.0 the version must be that of the tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
dist=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
if [[ -n $(ls -A "$dist") ]]; then
    echo "$dist is not empty: what it has would be published too" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet 'build>=1.2' 'twine>=6'
"$work/tools/bin/python" -m build --outdir "$dist"
"$work/tools/bin/python" -m twine check --strict "$dist"/*
wheels=("$dist"/*.whl)
if [[ ${GITHUB_REF_TYPE:-} == tag && ${wheels[0]##*/} != "pytest_dtdispatch-${GITHUB_REF_NAME#v}-"* ]]; then
    echo "${wheels[0]##*/} is not of the tag $GITHUB_REF_NAME" >&2
    exit 1
fi
cd "$work" # nothing of the checkout is imported from here
for package in "$dist"/*; do
    echo "${package##*/}: trying it in an empty environment"
    rm -rf fresh rows.csv
    "$python" -m venv fresh
    fresh/bin/python -m pip install --quiet "$package"
    fresh/bin/python -c 'import pytest_dtdispatch; print(pytest_dtdispatch.__file__)'
    fresh/bin/python -m pytest -q --dtdispatch --dtdispatch-rounds 5 --dtdispatch-export csv:rows.csv \
        --pyargs "pytest_dtdispatch.suite.test_ops::test_add[4]"
    grep --quiet dispatch_miss_ns rows.csv
    fresh/bin/dtdispatch --version
    fresh/bin/dtdispatch --help >/dev/null
done
