#!/bin/sh
# Benches whose ratios are compared with those before (tools/bench_compare.py): whole searches with and without
# sharing, constraints, speculation, forks. Always by AVX2 and two threads, so that what is kept can be found again.
#
#   bench/nightly.sh BUILD_DIR OUT_DIR      about 13 minutes
#
# Writes OUT_DIR/{searches,mcts,constraint,speculate,fork}-avx2.jsonl. To keep a run of a commit that is good: copy the files to
# bench/results/. A ratio that nothing is kept of fails the comparison: it would never be seen to get worse.
set -eu

bench=$1/bin/dendrite-bench
out=$2
model=$(cd "$(dirname "$0")/.." && pwd)/models/dendrite-24
mkdir -p "$out"

run() { # NAME BENCH OPTION ...
  name=$1
  shift
  "$bench" "$@" --threads 2 --kernels avx2 --json "$out/$name-avx2.jsonl"
}

run searches tree-vs-linear --model "$model" --prompt-length 400 --against radix,reprefill --trials 16
run mcts mcts --model "$model" --prompt-length 128 --expansions 12 --rollouts 8 --against reprefill --trials 16
run constraint constraint --model "$model" --branches 1,8 --trials 16
run speculate speculate --model "$model" --parts texts --modes suffix --branches 1,4 --heard 8 --trials 16
run fork fork-overhead --trials 200
