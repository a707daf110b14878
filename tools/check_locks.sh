#!/bin/sh
# Checks with clang what src/core/lock_check.h annotates: who reads or calls what without its lock.
# Takes include paths and definitions from a configured build folder ($1, or build).
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
clang=$(command -v clang++ || command -v clang++-14 || true)
if [ -z "$clang" ]; then
  echo "locks: clang++ was not found; expected Debian's package clang" >&2
  exit 1
fi
if [ ! -f "$build/compile_commands.json" ]; then
  echo "locks: $build/compile_commands.json was not found; expected a configured build (cmake --preset cpu)" >&2
  exit 1
fi
flags=$(python3 - "$build/compile_commands.json" <<'PY'
import json, shlex, sys

words = next(shlex.split(entry["command"]) for entry in json.load(open(sys.argv[1]))
             if entry["file"].endswith("/src/engine/engine.cpp"))
kept = [word for word in words if word.startswith(("-D", "-I", "-std="))]
kept += [f"-isystem {after}" for word, after in zip(words, words[1:]) if word == "-isystem"]
print(*kept)
PY
)
# What most files include is read once: a third of the time.
common=$build/locks.h
printf '#include "%s"\n' engine/branches/session_core.h engine/calls/decode_call.h engine/loop/run_call.h \
  engine/loop/turn.h > "$common"
check="$clang $flags -ferror-limit=0 -Wthread-safety -Werror=thread-safety"
# shellcheck disable=SC2086
$check -x c++-header "$common" -o "$common.pch"
find src/engine src/step -name '*.cpp' -print0 |
  xargs -0 -P "$(nproc)" -n 1 $check -fsyntax-only -include-pch "$common.pch"
echo "locks: every use of what a lock guards holds it"
