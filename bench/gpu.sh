#!/bin/sh
# Dendrite's side of the tables of a GPU beside bench/headline.sh's: raw samples as JSON, 16 trials a row.
#
#   bench/gpu.sh BUILD_DIR OUT_DIR [PART...]     (default: all; minutes on an H100 behind each)
#
#   sweep       steps of 1 to 256 branches, tokens a second, memory a branch; a chain beside a tree        3
#   compose     composed contexts, and the first composition of a process                                 6
#   constraint  decoding under constraints; TOKENIZER: a folder (constraint_tokenizers.py)                3
#   speculate   decoding with drafts                                                                      4
#
# Writes OUT_DIR/PART-SHAPE.jsonl, a line a run (bench/results/README.md). SHAPES="8b 1b"  TRIALS=16
set -eu

bench=$1/bin/dendrite-bench
out=$2
shift 2
[ $# -gt 0 ] || set -- sweep compose constraint speculate
SHAPES=${SHAPES:-"8b 1b"}
TRIALS=${TRIALS:-16}
mkdir -p "$out"
part=$(mktemp)
trap 'rm -f "$part"' EXIT

run() { # BENCH OPTION ...: one line more in the file
  bench_name=$1
  shift
  "$bench" "$bench_name" --shape "$shape" --device cuda --trials "$TRIALS" "$@" --json "$part"
  cat "$part" >> "$file"
}

for what in "$@"; do
  for shape in $SHAPES; do
    file=$out/$what-$shape.jsonl
    : > "$file"
    case $what in
      sweep)
        run decode --temperature 0.7 --own 32 --prompt-length 4096 --output-length 64 --branches 1,2,4,8,16,32,64,128,256
        run tree-vs-linear --against none --prompt-length 1024 --length 32 --judge-length 8 --depth 10 --branch 1 --keep 1
        run tree-vs-linear --against none --prompt-length 1024 --length 32 --judge-length 8 --depth 10 --branch 5 --keep 5
        ;;
      compose) run compose --first-uses "$TRIALS" ;;
      constraint) run constraint --tokenizer "${TOKENIZER:?a folder with tokenizer.json}" --output-length 128 ;;
      speculate) run speculate --parts texts --modes suffix,oracle-chain --oracle 0.86 --branches 1,8,32 --output-length 64 ;;
      *)
        echo "gpu: got $what; expected sweep, compose, constraint or speculate" >&2
        exit 2
        ;;
    esac
  done
done
