#!/usr/bin/env bash
# measure.sh: measure this checkout, hold it against the expected file where there is one, and write the report.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
mkdir -p "$folder"
read -r -a tests <<<"${DTDISPATCH_TESTS:-}"
read -r -a flags <<<"${DTDISPATCH_PYTEST_ARGS:-}"
if [[ -n ${DTDISPATCH_EXPECTED:-} ]]; then
    flags+=(--dtdispatch-expected "$DTDISPATCH_EXPECTED")
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"$here/stage.sh" measured "${PYTHON:-python}" -m pytest --dtdispatch --benchmark-quiet \
    --dtdispatch-export "html:$folder/report.html" --dtdispatch-export "csv:$folder/results.csv" \
    --dtdispatch-export markdown:auto "${flags[@]}" "${tests[@]}"
