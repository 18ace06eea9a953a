#!/usr/bin/env bash
# release_tools.sh: install what build.sh needs.
set -euo pipefail
"${PYTHON:-python}" -m pip install --quiet 'build>=1.2' 'twine>=6'
