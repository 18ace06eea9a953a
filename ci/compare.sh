#!/usr/bin/env bash
# compare.sh METRIC: compare the base and the head of a pull request on this machine: counts, instructions or time.
# DTDISPATCH_BASE and DTDISPATCH_HEAD are commits; a commit that a shallow checkout does not have is fetched.
# DTDISPATCH_AB_COUNTS, DTDISPATCH_AB_INSTRUCTIONS and DTDISPATCH_AB_TIME are further flags of dtdispatch ab.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
metric=$1
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
base=${DTDISPATCH_BASE:?the commit to compare with}
head=${DTDISPATCH_HEAD:-HEAD}
mkdir -p "$folder"
for commit in "$base" "$head"; do
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        "$here/stage.sh" "$metric" git fetch --quiet --depth=1 origin "$commit"
        [[ $(<"$folder/$metric.status") == 0 ]] || exit 0 # kept, and told by summary.sh
    fi
done
given=DTDISPATCH_AB_${metric^^}
read -r -a flags <<<"${!given:-}"
read -r -a tests <<<"${DTDISPATCH_TESTS:-}"
"$here/stage.sh" "$metric" "${PYTHON:-python}" -m pytest_dtdispatch ab --metric "$metric" \
    --base-rev "$base" --head-rev "$head" --json "$folder/$metric.json" "${flags[@]}" -- "${tests[@]}"
