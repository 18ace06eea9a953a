#!/usr/bin/env bash
# summary.sh: say what each stage found, as a page for the job's summary and as lines beside the pull request.
set -euo pipefail
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
most_bytes=60000 # of what a stage said: a summary may have 1 MiB, a comment 65,536 characters

verdict_of() {
    case $1 in
    0) echo passed ;;
    1) echo failed ;;
    2) echo "failed: a command line that cannot be obeyed" ;;
    3) echo "inconclusive: too noisy to tell, or nothing was compared" ;;
    4) echo "contaminated: plain tensors changed too" ;;
    5) echo "failed: a process did not measure" ;;
    *) echo "failed with status $1" ;;
    esac
}

mkdir -p "$folder"
: >"$folder/summary.txt"
for stage in install counts measured instructions time; do
    [[ -f $folder/$stage.status ]] || continue
    status=$(<"$folder/$stage.status")
    verdict=$(verdict_of "$status")
    echo "$stage: $verdict" >>"$folder/summary.txt"
    if [[ -n ${GITHUB_ACTIONS:-} && $status != 0 ]]; then
        echo "::warning title=dtdispatch $stage::$verdict; the summary of the job has the rows"
    fi
done
[[ -s $folder/summary.txt ]] || echo "no stage ran" >>"$folder/summary.txt"

# Indented by four spaces it stays text, whatever names and messages have in them.
page() {
    echo "## dtdispatch"
    sed 's/^/* /' "$folder/summary.txt"
    for log in "$folder"/*.log; do
        [[ -f $log ]] || continue
        printf '\n<details><summary>%s</summary>\n\n' "$(basename "$log" .log)"
        tail -c "$most_bytes" "$log" | tr -d '\000-\010\013-\037' | sed 's/^/    /'
        printf '\n</details>\n'
    done
}
page >"$folder/summary.md"
cat "$folder/summary.txt"
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$folder/summary.md" >>"$GITHUB_STEP_SUMMARY"
fi
