#!/bin/sh
# Tests and times the CUDA backend on a machine with a GPU: every op, goldens, fork and replay,
# eviction, compute-sanitizer, decode steps.
#
#   scripts/gpu_check.sh [BUILD_DIR] [tests] [sanitize] [bench]     (default: build-cuda, all three)
#
# BUILD_DIR: made by `cmake --preset cuda && cmake --build --preset cuda`.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$here/build-cuda}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- tests sanitize bench
export DENDRITE_TEST_DEVICE=cuda
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

for what in "$@"; do
  case $what in
    tests)
      for name in backend model engine; do
        echo "== test_$name"
        "$build/tests/test_$name" --gtest_brief=1
      done
      echo "== 1000 random companies a model"
      DENDRITE_TEST_SCALE=50 "$build/tests/test_engine" --gtest_brief=1 --gtest_filter='*Company*'
      "$build/bin/dendrite" solve --device cuda --model "$here/models/dendrite-24" 2 5 8 10 | tail -n 6
      ;;
    sanitize)
      sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer | head -n 1)
      for tool in memcheck racecheck initcheck; do
        echo "== compute-sanitizer $tool"
        "$sanitizer" --tool $tool --error-exitcode 9 "$build/tests/test_engine" --gtest_brief=1 \
          --gtest_filter='Eviction.AnIdle*:Eviction.AHolder*' | tail -n 3
        "$sanitizer" --tool $tool --error-exitcode 9 "$build/tests/test_backend" --gtest_brief=1 \
          --gtest_filter='*Tree*:*Block*:*Draw*' | tail -n 3
        [ $tool = racecheck ] && continue # minutes
        "$sanitizer" --tool $tool --error-exitcode 9 "$build/tests/test_backend" --gtest_brief=1 \
          --gtest_filter='*OnPath*Equals*:*OnPath*Gather*:*OnPath*Rope*' | tail -n 3
      done
      ;;
    bench)
      "$build/bin/dendrite-bench" decode --device cuda --shape 1.1b --branches 1 8 32 --prefix 512 \
        --output-length 32 --trials 5
      ;;
    *)
      echo "gpu_check: got $what; expected tests, sanitize or bench" >&2
      exit 2
      ;;
  esac
done
