#!/usr/bin/env bash
# job.sh: the stages of a job, one after the other: DTDISPATCH_STAGES is "counts", "counts instructions time", ...
# Without DTDISPATCH_BASE, as on a push, nothing is compared, and the checkout is measured alone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -r -a stages <<<"${DTDISPATCH_STAGES:-counts}"
for stage in "${stages[@]}"; do
    case $stage in
    counts | instructions | time) ;;
    *)
        echo "DTDISPATCH_STAGES: '$stage' is not one of counts, instructions, time" >&2
        exit 2
        ;;
    esac
done
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
"$here/stage.sh" install "$here/install.sh"
if [[ $(<"$folder/install.status") != 0 ]]; then
    stages=()
else
    "$here/measure.sh"
fi
if [[ -n ${DTDISPATCH_BASE:-} ]]; then
    for stage in "${stages[@]}"; do
        "$here/compare.sh" "$stage"
    done
fi
"$here/summary.sh"
