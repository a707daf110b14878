#!/usr/bin/env bash
# Tests and times the CUDA backend on a machine with a GPU, in parts that end within a few minutes
# each:
#
#   scripts/gpu_check.sh [--markdown FILE] [BUILD_DIR] [PART...]    (default: build-cuda, all parts)
#   scripts/gpu_check.sh --list                                     the parts' names
#
#   tests-backend tests-model tests-engine tests-debug    every op, goldens, fork and replay, debug mode
#   tests-random tests-search                             1000 random companies a model; a puzzle
#   tests-memory                                          takes all memory of the GPU: alone
#   TOOL-attention TOOL-products TOOL-sublayers TOOL-draws TOOL-moves TOOL-engine TOOL-generate
#                                    compute-sanitizer's race (racecheck), mem (memcheck), init (initcheck)
#   bench                                                 decode steps
#
# `tests`, `race`, `mem` and `init` stand for all of theirs. Parts but tests-memory and bench may run
# side by side. BUILD_DIR: made by `cmake --preset cuda && cmake --build --preset cuda`. A part fails
# where a test fails, where no test ran, or where its time is over (DENDRITE_GPU_SECONDS, 600).
# --markdown: a table of what ran, for bench/RESULTS.md.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
looks="attention products sublayers draws moves engine generate"
parts="tests tests-backend tests-model tests-engine tests-debug tests-random tests-search tests-memory bench"
for tool in race mem init; do
  parts="$parts $tool"
  for group in $looks; do parts="$parts $tool-$group"; done
done
if [ "$*" = --list ]; then
  echo "$parts"
  exit 0
fi
markdown=
if [ "${1:-}" = --markdown ]; then
  markdown=${2:?--markdown wants a file}
  shift 2
fi
build=${1:-$here/build-cuda}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- tests race mem init bench
for part in "$@"; do # before anything runs
  case " $parts " in
    *" $part "*) ;;
    *)
      echo "gpu_check: got $part; expected parts of: $parts" >&2
      exit 2
      ;;
  esac
done
export DENDRITE_TEST_DEVICE=cuda
limit=${DENDRITE_GPU_SECONDS:-600}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
rows=()

sanitizer() {
  command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer | head -n 1
}

# note PART SECONDS RAN VERDICT
note() {
  rows+=("| $1 | $3 | $2 | $4 |")
  echo "== $1: $3, $2 s: $4"
  [ "$4" = ok ] || failures=$((failures + 1))
}

# count REPORT PATTERN: lines of a GoogleTest report that have it.
count() {
  if [ -f "$1" ]; then grep -c -- "$2" "$1" || true; else echo 0; fi
}

# Whether racecheck ran, and found nothing in kernels of ours. It does not follow how cuBLAS's (nvjet)
# wait for their copies, nor that one lane's arrival behind __syncwarp() speaks for its warp: packed
# products hand on their sums by it, and FP8's say that they have read scales of x, which are copied.
no_races() {
  grep -q 'RACECHECK SUMMARY' "$scratch/output" &&
    [ "$(grep 'access at' "$scratch/output" | grep -vc 'nvjet\|packed::packed_\|e4m3::.*e4m3_')" = 0 ]
}

# suite PART PROGRAM FILTER [COMMAND THAT RUNS IT...]: tests of build/tests/PROGRAM.
suite() {
  local part=$1 program=$2 filter=$3 report="$scratch/report.json" status=0 begin=$SECONDS
  shift 3
  rm -f "$report"
  timeout --kill-after=10 "$limit" "$@" "$build/tests/$program" --gtest_brief=1 \
    --gtest_filter="$filter" --gtest_output="json:$report" > "$scratch/output" 2>&1 || status=$?
  local ran skipped failed verdict=ok
  ran=$(count "$report" '"result": "COMPLETED"')
  skipped=$(count "$report" '"result": "SKIPPED"')
  failed=$(count "$report" '"failures": \[')
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    verdict="did not end in $limit s"
  elif [ "$failed" != 0 ] || [ "$status" != 0 ]; then
    verdict="FAILED ($failed tests, exit status $status)"
  elif [ "$ran" = 0 ]; then
    verdict="FAILED (no test ran)"
  elif [[ $part == race-* ]] && ! no_races; then
    verdict="FAILED (races)"
  fi
  [ "$verdict" = ok ] || tail -n 60 "$scratch/output"
  note "$part" $((SECONDS - begin)) "$ran tests, $skipped skipped" "$verdict"
}

# command PART PATTERN COMMAND...: a run whose output must have a line like PATTERN.
command_part() {
  local part=$1 pattern=$2 status=0 begin=$SECONDS verdict=ok
  shift 2
  timeout --kill-after=10 "$limit" "$@" > "$scratch/output" 2>&1 || status=$?
  if [ "$status" != 0 ]; then
    verdict="FAILED (exit status $status)"
  elif ! grep -q -- "$pattern" "$scratch/output"; then
    verdict="FAILED (no line like $pattern)"
  fi
  tail -n "$([ "$verdict" = ok ] && echo 6 || echo 60)" "$scratch/output"
  note "$part" $((SECONDS - begin)) "1 run" "$verdict"
}

# sanitize TOOL GROUP: a part of what a sanitizer looks at.
sanitize() {
  local tool=$1 group=$2 part="$1-$2" name run without=
  case $tool in
    race) name=racecheck ;;
    mem) name=memcheck ;;
    init) name=initcheck ;;
  esac
  run=("$(sanitizer)" --tool "$name")
  [ "$tool" = race ] || run+=(--error-exitcode 9)
  case $group in
    attention) suite "$part" test_backend 'Sanitized.Attention*' "${run[@]}" ;;
    products) suite "$part" test_backend 'Sanitized.Products*:Sanitized.Rope*' "${run[@]}" ;;
    sublayers) # for racecheck without rows in company, which take it 3 minutes a test and more
      [ "$tool" != race ] || without='-*RowsHaveTheSameBits*'
      suite "$part" test_backend "*SublayersOnPath*$without" "${run[@]}"
      ;;
    draws) # for racecheck without three tests of thousands of draws by kernels that the others run, 2 to 7 minutes each
      [ "$tool" != race ] || without='-*AgreesWithTheHosts*:*.IsThatOf*:*OfAllTokens*'
      suite "$part" test_backend "*Draw*$without" "${run[@]}"
      ;;
    moves) suite "$part" test_backend '*KvMove*:*KvStoreTest.Copies*' "${run[@]}" ;;
    engine) suite "$part" test_engine 'Eviction.AnIdle*:Eviction.AHolder*' "${run[@]}" ;;
    generate)
      command_part "$part" 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "${run[@]}" \
        "$build/bin/dendrite" generate --device cuda --model "$here/models/dendrite-24" \
        --kv-tokens 4096 --max-tokens 12 --n 3 --ignore-eos --prompt "S 24: 2 5 8 10"
      ;;
  esac
}

run_part() {
  local group
  case $1 in
    tests)
      for group in backend model engine debug random search memory; do run_part "tests-$group"; done
      ;;
    tests-backend) suite "$1" test_backend '*' ;;
    tests-model) suite "$1" test_model '*' ;;
    tests-engine) suite "$1" test_engine '-*DeviceMemory*:KvDebug*' ;;
    tests-debug)
      suite "$1 (pages)" test_kv 'KvDebug*'
      suite "$1 (engines)" test_engine 'KvDebug*'
      DENDRITE_KV_DEBUG=1 suite "$1 (all)" test_engine 'ForkReplay*:Eviction.A*:EarlyStep*'
      ;;
    tests-random) DENDRITE_TEST_SCALE=50 suite "$1" test_engine '*Company*' ;;
    tests-search)
      command_part "$1" ' = 24 ' "$build/bin/dendrite" solve --device cuda \
        --model "$here/models/dendrite-24" 2 5 8 10
      ;;
    tests-memory) suite "$1" test_engine '*DeviceMemory*' ;;
    race | mem | init)
      for group in $looks; do sanitize "$1" "$group"; done
      ;;
    race-* | mem-* | init-*) sanitize "${1%%-*}" "${1#*-}" ;;
    bench)
      command_part "$1" . "$build/bin/dendrite-bench" decode --device cuda --shape 1.1b \
        --branches 1,8,32 --prefix 512 --output-length 32 --trials 5
      ;;
  esac
}

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
echo "$device"
for part in "$@"; do run_part "$part"; done
if [ -n "$markdown" ]; then
  {
    echo "$device, commit $(git -C "$here" rev-parse --short HEAD 2> /dev/null || echo unknown):"
    echo
    echo "| part | ran | seconds | |"
    echo "| --- | --- | --- | --- |"
    printf '%s\n' "${rows[@]}"
  } >> "$markdown"
fi
[ "$failures" = 0 ] || {
  echo "gpu_check: $failures parts failed" >&2
  exit 1
}
