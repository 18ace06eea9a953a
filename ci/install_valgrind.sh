#!/usr/bin/env bash
# install_valgrind.sh: install valgrind, by which instructions are counted, where it is not there.
set -euo pipefail
if ! command -v valgrind >/dev/null; then
    sudo apt-get update
    sudo apt-get install --yes --no-install-recommends valgrind
fi
valgrind --version
