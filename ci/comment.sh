#!/usr/bin/env bash
# comment.sh: write what a run found beside its pull request. It never fails: a token that may not write, as that
# of a fork, is told and no more. What it shows comes from a run of anybody's code: it is text, and nothing else.
set -euo pipefail
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
marker='<!-- dtdispatch -->'
most_bytes=50000

# By what GitHub itself says of the run, and not by what the run left in its files.
number_of_pull_request() {
    gh api --method GET "repos/$GITHUB_REPOSITORY/pulls" -f state=open -f "head=$RUN_OWNER:$RUN_BRANCH" \
        --jq "map(select(.head.sha == \"$RUN_SHA\")) | .[0].number // empty"
}

earlier_comment() {
    gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$1/comments" \
        --jq ".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$marker\"))) | .id" | head -n 1
}

body() {
    local text file
    text=$(
        for file in summary.txt counts.log instructions.log time.log; do
            [[ -f $folder/$file ]] || continue
            tail -n 40 "$folder/$file" | tail -c "$most_bytes" | tr -d '\000-\010\013-\037' | sed 's/^/    /'
            echo
        done
    )
    printf '%s\n**dtdispatch** on %s ([run](%s)):\n\n' "$marker" "${RUN_SHA:0:12}" "$RUN_URL"
    printf '%s\n' "${text:0:most_bytes}"
}

post() {
    local number earlier
    number=$(number_of_pull_request) || return 1
    [[ $number =~ ^[0-9]+$ ]] || { echo "no open pull request has $RUN_SHA" && return 0; }
    earlier=$(earlier_comment "$number") || return 1
    if [[ $earlier =~ ^[0-9]+$ ]]; then
        body | gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$earlier" -F body=@- >/dev/null
    else
        body | gh api --method POST "repos/$GITHUB_REPOSITORY/issues/$number/comments" -F body=@- >/dev/null
    fi
}

post || echo "::warning title=dtdispatch::no comment could be written; the summary of the run has it all"
