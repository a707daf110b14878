#!/bin/sh
# The CPU's tables: strategies on held-out puzzles, whole searches with and without sharing, forks. Raw samples as JSON.
#
#   bench/cpu.sh BUILD_DIR OUT_DIR        7 minutes on 8 free cores, half an hour on two
#
# Writes OUT_DIR/{game24,countdown4,countdown5,searches,fork}.jsonl, a line a run (bench/results/README.md). Each of four jobs
# has two threads; where there are 8 cores they run beside each other, pinned to two cores each, else in turns.
set -eu

bench=$1/bin/dendrite-bench
out=$2
here=$(cd "$(dirname "$0")/.." && pwd)
model=$here/models/dendrite-24
mkdir -p "$out"

puzzles() { # NAME FIRST_CORE [OPTION ...]
  name=$1 cores=$2,$(($2 + 1))
  shift 2
  pin "$cores" "$bench" game24 --threads 2 --file "$model/${name}_heldout.txt" "$@" --json "$out/$name.jsonl"
}

searches() { # FIRST_CORE: these two, and forks after them, on a quiet core
  cores=$1,$(($1 + 1))
  part=$out/searches.part
  pin "$cores" "$bench" tree-vs-linear --threads 2 --prompt-length 400 --json "$part"
  cp "$part" "$out/searches.jsonl"
  pin "$cores" "$bench" mcts --threads 2 --prompt-length 128 --trials 4 --json "$part"
  cat "$part" >> "$out/searches.jsonl"
  rm "$part"
  pin "$cores" "$bench" fork-overhead --trials 200 --json "$out/fork.jsonl"
}

pin() { # CORES COMMAND ...
  cores=$1
  shift
  if [ "$together" = yes ]; then taskset -c "$cores" "$@"; else "$@"; fi
}

if [ "$(nproc)" -ge 8 ]; then
  together=yes
  puzzles game24 0 & a=$!
  puzzles countdown4 2 & b=$!
  puzzles countdown5 4 & c=$!
  searches 6
  wait $a && wait $b && wait $c
else
  together=no
  puzzles game24 0
  puzzles countdown4 0
  puzzles countdown5 0
  searches 0
fi
