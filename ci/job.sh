#!/usr/bin/env bash
# job.sh: measure a checkout, compare its head with a base, write a summary, and set the status of the job.
# DTDISPATCH_TESTS: arguments of pytest. DTDISPATCH_BASE: the commit to compare with; if empty, nothing is compared.
# DTDISPATCH_STAGES: any of counts, instructions, time. DTDISPATCH_STRICT=true: a stage that did not pass fails the
# job. DTDISPATCH_EXPECTED: an expected file to check the head against. DTDISPATCH_FOLDER: folder of all files.
# DTDISPATCH_PYTEST_ARGS, DTDISPATCH_AB_COUNTS, DTDISPATCH_AB_INSTRUCTIONS, DTDISPATCH_AB_TIME: further flags.
# DTDISPATCH_SOURCE: requirement for pip if the plugin is not installed. PYTHON: has torch and the project.
set -euo pipefail
python=${PYTHON:-python}
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
base=${DTDISPATCH_BASE:-}
max_bytes=60000 # of the output of a stage: GitHub limits a summary to 1 MiB
failed=() verdicts=()
annotation=warning # of rows that fail: the job itself fails only in strict mode
[[ ! ${DTDISPATCH_STRICT:-} =~ ^(true|1)$ ]] || annotation=error
read -r -a stages <<<"${DTDISPATCH_STAGES:-counts}"
read -r -a tests <<<"${DTDISPATCH_TESTS:-}"
for name in "${stages[@]}"; do
    if [[ ! $name =~ ^(counts|instructions|time)$ ]]; then
        echo "DTDISPATCH_STAGES: '$name' is not one of counts, instructions, time" >&2
        exit 2
    fi
done

verdict_of() {
    case $1 in
    0) echo passed ;;
    1) echo failed ;;
    2) echo "failed: invalid command line or file" ;;
    3) echo "inconclusive: too noisy to tell, or nothing was compared" ;;
    4) echo "contaminated: plain tensors changed too" ;;
    5) echo "failed: a process did not measure" ;;
    *) echo "failed with status $1" ;;
    esac
}

# stage NAME COMMAND...: run a command, save its output, and continue. Indented by four spaces, it is no Markdown.
stage() {
    local name=$1 status=0 verdict line
    shift
    echo "== dtdispatch: $name"
    "$@" 2>&1 | sed -u "s/^::error /::$annotation /" | tee "$folder/$name.log" || status=${PIPESTATUS[0]}
    verdict=$(verdict_of "$status")
    echo "$name: $verdict" | tee -a "$folder/summary.txt"
    line=$(sed -n "s/^### \($name: .*\)/\1/p" "$folder/$name.log" | head -n 1)
    [[ -z $line && $status == 0 ]] || verdicts+=("${line:-$name: $verdict}")
    {
        printf '\n<details><summary>%s: %s</summary>\n\n' "$name" "$verdict"
        sed "/^### $name: /,\$d" "$folder/$name.log" | tail -c "$max_bytes" | tr -d '\000-\010\013-\037' | sed 's/^/    /'
        printf '\n</details>\n\n'
    } >>"$folder/logs.md"
    if [[ $status != 0 ]]; then
        failed+=("$name")
        [[ -z ${GITHUB_ACTIONS:-} ]] || echo "::warning title=dtdispatch $name::$verdict; the summary of the job has the rows"
    fi
}

install() {
    "$python" -c 'import pytest_dtdispatch' 2>/dev/null || "$python" -m pip install "${DTDISPATCH_SOURCE:-pytest-dtdispatch}" || return
    if [[ " ${stages[*]} " == *" instructions "* ]] && ! command -v valgrind >/dev/null; then
        sudo apt-get update && sudo apt-get install --yes --no-install-recommends valgrind || return
    fi
    "$python" -m pytest_dtdispatch --version
}

measure() {
    local flags
    read -r -a flags <<<"${DTDISPATCH_PYTEST_ARGS:-}"
    [[ -z ${DTDISPATCH_EXPECTED:-} ]] || flags+=(--dtdispatch-expected "$DTDISPATCH_EXPECTED")
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} GITHUB_STEP_SUMMARY="$folder/measured.md" "$python" -m pytest --dtdispatch --benchmark-quiet \
        --dtdispatch-export "html:$folder/report.html" --dtdispatch-export "csv:$folder/results.csv" \
        --dtdispatch-export markdown:auto "${flags[@]}" "${tests[@]}"
}

# compare METRIC: compare the commits; fetch the base if a shallow checkout lacks it.
compare() {
    local flags given=DTDISPATCH_AB_${1^^}
    rm -rf "${folder:?}/$1" # a runner may keep the folder of an earlier job
    git cat-file -e "$base^{commit}" 2>/dev/null || git fetch --quiet --depth=1 origin "$base" || return
    read -r -a flags <<<"${!given:-}"
    "$python" -m pytest_dtdispatch ab --metric "$1" --base-rev "$base" --head-rev HEAD \
        --keep "$folder/$1" --json "$folder/$1.json" --markdown "${flags[@]}" -- "${tests[@]}"
}

mkdir -p "$folder"
for file in summary.txt measured.md changes.md logs.md; do
    : >"$folder/$file"
done
unset FORCE_COLOR
export NO_COLOR=1 COLUMNS=${COLUMNS:-120} # for the pages
stage install install
if ((${#failed[@]} == 0)); then
    stage measured measure
    for name in ${base:+"${stages[@]}"}; do
        stage "$name" compare "$name"
        sed -n "/^### $name: /,\$p" "$folder/$name.log" >>"$folder/changes.md" # the Markdown that it ends with
    done
fi
# First the verdict of each stage with its rows, then what changed, the head alone, and logs.
((${#verdicts[@]})) || mapfile -t verdicts < <(sed -n '1s/^## dtdispatch: //p' "$folder/measured.md")
title=$(printf '; %s' "${verdicts[@]:-nothing was measured}")
{
    echo "## dtdispatch: ${title#; }"
    if ((${#verdicts[@]} == 1)); then sed '/^### /d' "$folder/changes.md"; else cat "$folder/changes.md"; fi # the title has it
    sed 's/^## dtdispatch: /### head: /' "$folder/measured.md"
    cat "$folder/logs.md"
} >"$folder/summary.md"
[[ -z ${GITHUB_STEP_SUMMARY:-} ]] || cat "$folder/summary.md" >>"$GITHUB_STEP_SUMMARY"
if ((${#failed[@]} == 0)); then
    echo "dtdispatch: every stage passed"
elif [[ $annotation == error ]]; then
    echo "dtdispatch: not passed: ${failed[*]}"
    exit 1
else
    echo "dtdispatch: not passed: ${failed[*]}; informational: set DTDISPATCH_STRICT to true to fail the job"
fi
