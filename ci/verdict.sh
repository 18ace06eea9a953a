#!/usr/bin/env bash
# verdict.sh: decide. Informational, it tells and ends with 0; strict, a stage that did not pass fails the job,
# and so does a job of which no stage ran.
set -euo pipefail
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
failed=()
ran=0
for file in "$folder"/*.status; do
    [[ -f $file ]] || continue
    ran=$((ran + 1))
    [[ $(<"$file") == 0 ]] || failed+=("$(basename "$file" .status)")
done
if ((ran == 0)); then
    failed=("no stage ran")
fi
if ((${#failed[@]} == 0)); then
    echo "dtdispatch: every stage passed"
elif [[ ${DTDISPATCH_STRICT:-} == true || ${DTDISPATCH_STRICT:-} == 1 ]]; then
    echo "dtdispatch: not passed: ${failed[*]}"
    exit 1
else
    echo "dtdispatch: not passed: ${failed[*]}; informational: set DTDISPATCH_STRICT to true to fail the job"
fi
