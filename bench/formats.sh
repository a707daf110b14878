#!/bin/sh
# What search survives of the bits: the shipped model's held-out puzzles by one greedy text, by samples and by trees, with its weights
# in each format and with K and V in FP8, a line each; results as JSON in OUT.
#
#   bench/formats.sh BUILD_DIR OUT_DIR [FOLDER]
#
# FOLDER: GGUF files of models/dendrite-24, TYPE.gguf each, as tests/server/clients/peers/stored_types.py keeps them.
set -eu
cd "$(dirname "$0")/.."
bench=$1/bin/dendrite-bench
out=$2
folder=${3:-}
model=models/dendrite-24
mkdir -p "$out"

solve() { # NAME OPTION...
  name=$1
  shift
  "$bench" game24 --file "$model/game24_heldout.txt" --search best-of-n:8,tot:1 --json "$out/$name.json" "$@" > "$out/$name.log"
  sed -n "s/^\(greedy\|best-of-n\|tot\)  */$name  \1 /p" "$out/$name.log"
}

for dtype in f32 bf16; do solve "$dtype" --model "$model" --dtype "$dtype"; done
solve kv_fp8 --model "$model" --dtype bf16 --kv-dtype fp8
for quantization in int8 int4; do solve "$quantization" --model "$model" --quantization "$quantization"; done
[ -n "$folder" ] || exit 0
for file in "$folder"/*.gguf; do solve "$(basename "$file" .gguf)" --model "$file"; done
