#!/bin/sh
# Checks with clang what src/core/lock_check.h annotates: who reads or calls what without its lock.
# Takes include paths and definitions from a configured build folder ($1, or build).
set -eu
cd "$(dirname "$0")/.."
commands=${1:-build}/compile_commands.json
clang=$(command -v clang++ || command -v clang++-14 || true)
if [ -z "$clang" ]; then
  echo "locks: clang++ was not found; expected Debian's package clang" >&2
  exit 1
fi
if [ ! -f "$commands" ]; then
  echo "locks: $commands was not found; expected a configured build (cmake --preset cpu)" >&2
  exit 1
fi
python3 - "$commands" <<'PY' | xargs -P "$(nproc)" -n 1 sh -c "$clang -fsyntax-only -ferror-limit=0 -Wthread-safety -Werror=thread-safety \$0"
import json, pathlib, shlex, sys

for entry in json.load(open(sys.argv[1])):
    file = pathlib.Path(entry["directory"], entry["file"]).resolve()
    if pathlib.Path("src/engine").resolve() not in file.parents and pathlib.Path("src/step").resolve() not in file.parents:
        continue
    words = shlex.split(entry["command"])
    kept = [word for word in words if word.startswith(("-D", "-I", "-std="))]
    kept += [f"-isystem {after}" for word, after in zip(words, words[1:]) if word == "-isystem"]
    print(shlex.quote(" ".join([*kept, str(file)])))
PY
echo "locks: every use of what a lock guards holds it"
