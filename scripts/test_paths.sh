#!/usr/bin/env bash
# Tests on instruction paths of this machine that nothing else chooses: other numerics draw other tokens, and
# no test may rest on those that one path draws. DENDRITE_TEST_KERNELS names the path, for whatever loads an
# engine without naming one: C++, the command line, programs, Python.
#
#   scripts/test_paths.sh another     the suites that sample (search, command line, examples, and Python's) on
#                                     AVX2; where that is the best path they have run on it
#   scripts/test_paths.sh all         those, the engine's, the models', the grammars' and all of Python's on every path, and on
#                                     the model of AMX's tiles
#   scripts/test_paths.sh PATH...     the same on these
#
# BUILD: the build folder (default build); its tests are built, and the wheel is made of it.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || {
  grep '^#   ' "$0" | cut -c3- >&2
  exit 2
}
build=${BUILD:-build}

paths() { # best first
  "$build/bin/dendrite" info --model models/dendrite-24 --json |
    python3 -c 'import json, sys; print(*json.load(sys.stdin)["device"]["available_kernels"])'
}

suites='engine model search cli examples grammar'
python=core
cmake --build "$build" -j "$(nproc)" --target dendrite-cli
case "$1" in
  another)
    available=$(paths)
    suites='search cli examples'
    python=path
    if [ "${available%% *}" = avx2 ] || [[ " $available " != *" avx2 "* ]]; then
      echo "the best path here is ${available%% *}: there is no other that many machines choose"
      exit 0
    fi
    set -- avx2
    ;;
  # shellcheck disable=SC2046
  all) set -- $(paths) amx_bf16_model ;;
esac

targets=(dendrite-cli examples)
for suite in $suites; do targets+=("test_$suite"); done
cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
OUT=$build/wheels scripts/package.sh wheel "-Ccmake.define.DENDRITE_PREBUILT=$build"
WHEEL=$(ls "$build"/wheels/dendrite_llm-*.whl)
export WHEEL
for path in "$@"; do
  printf -- '-- on %s (%s)\n' "$path" "$(date +%T)"
  export DENDRITE_TEST_KERNELS=$path
  log=$build/test_paths.log
  ctest --test-dir "$build" -j "$(nproc)" --output-on-failure --no-tests=error -R "^(${suites// /|})\\." \
    > "$log" || { cat "$log"; exit 1; }
  tail -n 5 "$log"
  BUILD=$build python/tests/run.sh "$python"
done
