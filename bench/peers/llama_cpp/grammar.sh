#!/bin/sh
# What constraints cost in Dendrite and in llama.cpp, on the same random weights, prompt and grammars, in turns, in one run.
#
#   bench/peers/llama_cpp/grammar.sh BUILD_DIR TOKENIZER [OUT_FILE]
#
# TOKENIZER: a folder of bench/constraint_tokenizers.py, whose vocabulary the model gets. Prebuilt libraries of llama.cpp and
# their headers come from npm (node-llama-cpp); nothing of them is kept in this repository. Its grammar masks all candidates
# before the draw. Settings, by environment: SHAPE=135m  THREADS=1  BRANCHES=1,8  TRIALS=4
set -eu

VERSION=3.22.1
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
tokenizer=$2
out=${3:-$build/peers/results/llama_cpp-grammar.jsonl}
work=$build/peers/llama_cpp
bench=$build/bin/dendrite-bench
SHAPE=${SHAPE:-135m}
model=$work/$SHAPE-$(basename "$tokenizer")
mkdir -p "$work/prebuilt" "$(dirname "$out")"

# --- headers and libraries; install scripts are not run
cd "$work"
if [ ! -d llama.cpp ]; then
  npm pack --silent node-llama-cpp@$VERSION && tar xzf node-llama-cpp-$VERSION.tgz
  git clone --quiet package/llama/gitRelease.bundle llama.cpp
fi
if [ ! -d prebuilt/package ]; then
  npm pack --silent @node-llama-cpp/linux-x64@$VERSION && tar xzf node-llama-cpp-linux-x64-$VERSION.tgz -C prebuilt
fi
libraries=$work/prebuilt/package/bins/linux-x64
release=$(sed -n 's/.*"release": *"\([^"]*\)".*/\1/p' package/llama/binariesGithubRelease.json)
c++ -std=c++17 -O2 -Wall -Wextra -I llama.cpp/include -I llama.cpp/ggml/include "$here/llama_step.cpp" \
  -o llama_grammar "$libraries/libllama.$release.so" "$libraries/libggml.$release.so" -Wl,--allow-shlib-undefined

"$bench" weights --shape "$SHAPE" --tokenizer "$tokenizer" --out "$model" --gguf f16
peer="exec env LD_LIBRARY_PATH=$libraries $work/llama_grammar --model $model/model-f16.gguf --backends $libraries"
peer="$peer --threads ${THREADS:-1} --label $release-prebuilt --branches 64 --tokens 32768"
"$bench" constraint --model "$model" --threads "${THREADS:-1}" --branches "${BRANCHES:-1,8}" --trials "${TRIALS:-4}" \
  --peer "$peer" --json "$out"
