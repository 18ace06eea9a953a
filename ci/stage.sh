#!/usr/bin/env bash
# stage.sh NAME COMMAND...: run the command of a stage, keep what it says and its exit status, and go on.
# Which stage fails the job is decided at the end, by verdict.sh.
set -euo pipefail
name=$1
shift
folder=${DTDISPATCH_FOLDER:-dtdispatch-ci}
mkdir -p "$folder"
unset FORCE_COLOR
export NO_COLOR=1 COLUMNS=${COLUMNS:-120} # what is said goes into pages
echo "== dtdispatch: $name"
status=0
"$@" 2>&1 | tee "$folder/$name.log" || status=${PIPESTATUS[0]}
echo "$status" >"$folder/$name.status"
echo "== dtdispatch: $name ended with status $status"
