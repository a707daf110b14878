#!/usr/bin/env bash
# Unmodified clients against `dendrite serve`, each in an environment of its own with what its .txt
# pins. pip downloads them (some 20 MB).
#
#   tests/server/clients/run.sh [NAME...]      (default: all that have a NAME.txt here)
#
# BUILD: the build folder with bin/dendrite (default build).
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath -m "${BUILD:-build}")
here=tests/server/clients
[ $# -gt 0 ] || set -- $(basename -s .txt "$here"/*.txt)
export DENDRITE_PROGRAM=$build/bin/dendrite PYTHONDONTWRITEBYTECODE=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1

for name in "$@"; do
  echo "-- client $name ($(date +%T))"
  venv=$build/venv/client-$name
  if ! cmp -s "$here/$name.txt" "$venv/pins.txt"; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" install --no-deps -r "$here/$name.txt"
    cp "$here/$name.txt" "$venv/pins.txt"
  fi
  (cd "$here" && "$venv/bin/python" -m unittest -q "test_$name")
done
