#!/usr/bin/env bash
# session.sh: run one session of noxfile.py, DTDISPATCH_SESSION, on a machine of GitHub: room is made on its disk first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ${GITHUB_ACTIONS:-} == true ]]; then
    sudo rm -rf /usr/local/lib/android /usr/share/dotnet /opt/ghc /opt/hostedtoolcache/CodeQL
fi
"${PYTHON:-python}" -m pip install --quiet 'nox>=2024.4'
status=0
"${PYTHON:-python}" -m nox --session "${DTDISPATCH_SESSION:?a session of noxfile.py}" || status=$?
if [[ -n ${GITHUB_STEP_SUMMARY:-} && -f .nox/sessions.md ]]; then
    grep --invert-match 'did not run' .nox/sessions.md >>"$GITHUB_STEP_SUMMARY"
fi
exit "$status"
