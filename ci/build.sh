#!/usr/bin/env bash
# build.sh [FOLDER]: build sdist and wheel of this checkout into an empty folder, and check both.
# PYTHON has build and twine. Of a tag, as v0.1.0, the version must be that of the tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
dist=${1:-dist}
if [[ -d $dist && -n $(ls -A "$dist") ]]; then
    echo "$dist is not empty: what it has would be published too" >&2
    exit 2
fi
"$python" -m build --outdir "$dist"
"$python" -m twine check --strict "$dist"/*
wheels=("$dist"/*.whl)
names=$("$python" -m zipfile --list "${wheels[0]}" | awk 'NR > 1 { print $1 }')
if foreign=$(grep --invert-match --extended-regexp '^pytest_dtdispatch(/|-[^/]+\.dist-info/)' <<<"$names"); then
    echo "the wheel has more than the package:" "$foreign" >&2
    exit 1
fi
if [[ ${GITHUB_REF_TYPE:-} == tag && ${wheels[0]##*/} != "pytest_dtdispatch-${GITHUB_REF_NAME#v}-"* ]]; then
    echo "${wheels[0]##*/} is not of the tag $GITHUB_REF_NAME" >&2
    exit 1
fi
wc -l <<<"$names" | sed 's/$/ files in the wheel/'
