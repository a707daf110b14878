#!/bin/sh
# Dendrite's side of the tables beside vLLM: the workloads of bench/peers/vllm/run.py, raw samples as JSON.
#
#   bench/headline.sh BUILD_DIR OUT_DIR        about 6 minutes on an H200
#
# Writes OUT_DIR/dendrite-SHAPE.jsonl, a line a run (bench/results/README.md). A step's branches have 32 tokens of their own
# after the shared ones before the first step that counts, as vLLM's have between the two lengths whose slope is taken.
# Settings, by environment: SHAPES="8b 1b"  DEVICE=cuda  TRIALS=16 (a quarter of it for what is not in the README)
set -eu

bench=$1/bin/dendrite-bench
out=$2
SHAPES=${SHAPES:-"8b 1b"}
DEVICE=${DEVICE:-cuda}
TRIALS=${TRIALS:-16}
few=$(((TRIALS + 3) / 4))
mkdir -p "$out"
part=$(mktemp)
trap 'rm -f "$part"' EXIT

run() { # BENCH OPTION ...: one line more in the shape's file
  bench_name=$1
  shift
  "$bench" "$bench_name" --shape "$shape" --device "$DEVICE" "$@" --json "$part"
  cat "$part" >> "$file"
}

for shape in $SHAPES; do
  file=$out/dendrite-$shape.jsonl
  : > "$file"
  step="decode --temperature 0.7 --own 32"
  search="tree-vs-linear --against none --prompt-length 1024 --length 64 --judge-length 16"
  # shellcheck disable=SC2086
  {
    run $step --branches 1 --prompt-length 512 --output-length 240 --trials "$TRIALS"
    run $step --branches 32,128 --prompt-length 4096 --output-length 128 --trials "$TRIALS"
    run $search --depth 5 --branch 4 --keep 4 --trials "$TRIALS"
    run $step --branches 8 --prompt-length 4096 --output-length 128 --trials "$few"
    run $step --branches 16 --prompt-length 8192 --output-length 128 --trials "$few"
    run score --no-independent --prompt-length 2048 --continuations 64 --length 16 --shared 0 --trials "$few"
    run $search --depth 10 --branch 5 --keep 5 --trials "$few"
    run decode --temperature 0.7 --own 24 --branches 32 --prompt-length 32768 --output-length 64 --trials "$few"
  }
done
