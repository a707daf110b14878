#!/bin/sh
# Checks (or with --fix applies) the formatting of all C++ files with the pinned clang-format.
set -eu
cd "$(dirname "$0")/.."
format=$(command -v clang-format-14 || true)
if [ -z "$format" ]; then
  echo "format: clang-format-14 was not found; expected Debian's package clang-format-14" >&2
  exit 1
fi
files=$(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = "--fix" ]; then
  # shellcheck disable=SC2086
  "$format" -i $files
else
  # shellcheck disable=SC2086
  "$format" --dry-run --Werror $files
fi
