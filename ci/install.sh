#!/usr/bin/env bash
# install.sh: bring what the stages need and is not there: the plugin, and valgrind where instructions are counted.
# DTDISPATCH_SOURCE is what pip installs: a folder, or a requirement such as pytest-dtdispatch==0.1.0.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python}
if ! "$python" -c 'import pytest_dtdispatch' 2>/dev/null; then
    "$python" -m pip install "${DTDISPATCH_SOURCE:-pytest-dtdispatch}"
fi
if [[ " ${DTDISPATCH_STAGES:-counts} " == *" instructions "* ]]; then
    "$here/install_valgrind.sh"
fi
"$python" -m pytest_dtdispatch --version
