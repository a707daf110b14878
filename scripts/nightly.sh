#!/bin/sh
# What finds more the longer it runs, and is too long for .ci/run: random tests with 20 times the
# iterations, hours of the fuzzers, all tests under each sanitizer, the quality of the shipped models.
#
#   scripts/nightly.sh [random] [fuzz] [asan] [tsan] [quality]       (default: all)
#
# SECONDS_EACH: how long each fuzzer runs (default 1800). SCALE: of the random tests (default 20).
# OUT: where results and programs that fail go (default build/nightly).
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- random fuzz asan tsan quality
seconds=${SECONDS_EACH:-1800}
scale=${SCALE:-20}
out=${OUT:-build/nightly}
jobs=$(nproc)
seed=$(date +%Y%j)
# shellcheck source=scripts/env.sh
. scripts/env.sh

scripts/install_deps.sh tests
make build
mkdir -p "$out"

under() { # a sanitizer's preset: all tests
  mkdir -p "build-$1"
  cp -a build/bridge "build-$1/" # the Rust part is the same
  cmake --preset "$1" -DDENDRITE_BUILD_CLI=OFF -DDENDRITE_BUILD_EXAMPLES=OFF > /dev/null
  cmake --build --preset "$1" -j "$jobs"
  ctest --preset "$1" -j "$jobs"
}

for what in "$@"; do
  echo "== $what ($(date +%T))"
  case $what in
    random)
      cmake --build build -j "$jobs"
      for folder in engine kv sample search text; do
        DENDRITE_TEST_SCALE=$scale "build/tests/test_$folder" --gtest_brief=1
      done
      DENDRITE_KV_DEBUG=1 build/tests/test_engine --gtest_brief=1
      ctest --preset cpu -j "$jobs" -R fuzz.mutant
      ;;
    fuzz)
      cmake --build build -j "$jobs"
      build/bin/dendrite-fuzz --seconds "$seconds" --seed "$seed" --save "$out/failed.program"
      for target in safetensors json_config index snapshot; do
        "build/bin/fuzz_$target" "tests/data/io/fuzz/$target" "$seconds"
      done
      (cd bridge && DENDRITE_TEST_SCALE=200 cargo test --release --locked --quiet \
        --target-dir ../build/bridge fuzz)
      ;;
    asan | tsan) under "$what" ;; # the first looks for leaks, too
    quality)
      build/bin/dendrite-bench game24 --json "$out/game24.json"
      build/bin/dendrite-bench tool-calls --json "$out/tool-calls.json"
      ;;
    *)
      echo "nightly: got $what; expected random, fuzz, asan, tsan or quality" >&2
      exit 2
      ;;
  esac
done
