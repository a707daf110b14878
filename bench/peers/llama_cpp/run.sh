#!/bin/sh
# Decode steps and whole searches of Dendrite and llama.cpp on the same random weights, in turns, in one run.
#
#   bench/peers/llama_cpp/run.sh BUILD_DIR [OUT_DIR]
#
# BUILD_DIR: a build tree with bin/dendrite-bench. Results: OUT_DIR/llama_cpp-SHAPE.jsonl, a
# line a run (bench/results/README.md; default BUILD_DIR/peers/results).
# llama.cpp comes from npm: the package node-llama-cpp carries the full source it is built from. It is
# compiled here with the system's compiler for this machine (-march=native) and once more for AVX2 alone;
# prebuilt libraries are slower in batches. Of WEIGHTS q8_0, q4_0 and q4_k are files that llama.cpp's own
# quantizer writes, and both read the same one; for these BUILDS may have no-amx: where a process may not use
# AMX's products of bytes, llama.cpp's native build ends with an illegal instruction. BUILDS=cuda, on a GPU
# whose nvcc is on the PATH or is CUDACXX: both engines there, llama.cpp with all layers, flash attention and
# its argmax on the GPU. BUILDS=ik, with IK_LLAMA=DIR, a checkout of ik_llama.cpp: that engine instead,
# compiled for this machine, with tensors repacked as they are read and its flash attention; files of WEIGHTS
# are still llama.cpp's. Nothing of either is kept in this repository.
#
# Settings, by environment: SHAPES="250m 1.1b"  THREADS="1 2"  BUILDS="native avx2"  WEIGHTS="bf16 f16"
#   PROMPTS="512 8192"  BRANCHES=1,4,8,16 (the most last)  TRIALS=16  STEPS=8  QUIET=0 (dendrite-bench decode --help)
#   SEARCHES="tree-vs-linear mcts" (the same searches on both engines; "" for none)
set -eu

PACKAGE=node-llama-cpp@3.22.1
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
out=${2:-$build/peers/results}
work=$build/peers/llama_cpp
bench=$build/bin/dendrite-bench
jobs=${JOBS:-$(nproc)}
SHAPES=${SHAPES:-"250m 1.1b"}
THREADS=${THREADS:-"1 2"}
BUILDS=${BUILDS:-"native avx2"}
WEIGHTS=${WEIGHTS:-"bf16 f16"}
PROMPTS=${PROMPTS:-"512 8192"}
BRANCHES=${BRANCHES:-1,4,8,16}
TRIALS=${TRIALS:-16}
STEPS=${STEPS:-8}
QUIET=${QUIET:-0}
SEARCHES=${SEARCHES-"tree-vs-linear mcts"}
mkdir -p "$work" "$out"

# --- source, from npm; install scripts are not run
if [ ! -d "$work/llama.cpp" ]; then
  (cd "$work" && npm pack --silent "$PACKAGE" && tar xzf node-llama-cpp-*.tgz)
  git clone --quiet "$work/package/llama/gitRelease.bundle" "$work/llama.cpp"
fi
release=$(sed -n 's/.*"release": *"\([^"]*\)".*/\1/p' "$work/package/llama/binariesGithubRelease.json")

# --- libraries: all for this machine, and the CPU kernels once more for AVX2 alone
configure() {
  dir=$1
  source=$2
  shift 2
  mkdir -p "$work/$dir"
  [ -f "$work/$dir/build.ninja" ] ||
    cmake -S "$source" -B "$work/$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_SHARED_LIBS=ON -DCMAKE_SKIP_RPATH=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF \
      -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
      -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF "$@" > "$work/$dir.log"
}
wanted() {
  case " $BUILDS " in *" $1 "*) ;; *) return 1 ;; esac
}
configure native "$work/llama.cpp" -DGGML_NATIVE=ON
ninja -C "$work/native" -j "$jobs" llama >> "$work/native.log"
if wanted avx2; then
  configure avx2 "$work/llama.cpp" -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON \
    -DGGML_FMA=ON -DGGML_F16C=ON
  ninja -C "$work/avx2" -j "$jobs" ggml-cpu >> "$work/avx2.log"
fi
if wanted no-amx; then
  configure no-amx "$work/llama.cpp" -DGGML_NATIVE=ON -DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8
  ninja -C "$work/no-amx" -j "$jobs" ggml-cpu >> "$work/no-amx.log"
fi
if wanted cuda; then
  configure cuda "$work/llama.cpp" -DGGML_NATIVE=ON -DGGML_CUDA=ON
  ninja -C "$work/cuda" -j "$jobs" ggml >> "$work/cuda.log"
fi
# A program of this folder, from a source of headers and a build with its libraries in bin/.
program() {
  name=$1
  headers=$2
  libraries=$3
  shift 3
  c++ -std=c++17 -O2 -Wall -Wextra -I "$headers/include" -I "$headers/ggml/include" "$here/$name.cpp" \
    -L "$libraries/bin" "$@" -Wl,--allow-shlib-undefined
}
for name in llama_step quantize; do
  program "$name" "$work/llama.cpp" "$work/native" -o "$work/$name" -lllama -lggml -lggml-base
done
if wanted ik; then
  ik=$(cd "${IK_LLAMA:?a checkout of ik_llama.cpp is needed for BUILDS=ik}" && pwd)
  # Of K and V in four bits its attention needs many minutes of compiling; they are in f16 here.
  configure ik "$ik" -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$work/ik/bin"
  ninja -C "$work/ik" -j "$jobs" llama >> "$work/ik.log"
  program llama_step "$ik" "$work/ik" -DIK_LLAMA -o "$work/ik_llama_step" -lllama -lggml
fi

# --- runs: one process of each engine, trials in turns
part=$work/run.json
for shape in $SHAPES; do
  file=$out/llama_cpp-$shape.jsonl
  : > "$file"
  for type in $WEIGHTS; do
    case $type in
      q*)
        "$bench" weights --shape "$shape" --out "$work/$shape" --gguf bf16
        LD_LIBRARY_PATH=$work/native/bin "$work/quantize" "$work/$shape/model-bf16.gguf" "$work/$shape/model-$type.gguf" \
          "$type" 2>> "$work/quantize.log"
        ;;
      *) "$bench" weights --shape "$shape" --out "$work/$shape" --gguf "$type" ;;
    esac
  done
  for variant in $BUILDS; do
    kernels=""
    libraries=$work/native/bin
    step=$work/llama_step
    label=$release-$variant
    [ "$variant" = native ] || libraries=$work/$variant/bin:$libraries
    [ "$variant" = avx2 ] && kernels="--kernels avx2"
    gpu=""
    [ "$variant" = cuda ] && gpu=--gpu kernels="--device cuda"
    if [ "$variant" = ik ]; then
      libraries=$work/ik/bin
      step="$work/ik_llama_step --flash 1"
      label=$(git -C "$ik" rev-parse --short=12 HEAD)-repacked
    fi
    for threads in $THREADS; do
      clock=""
      [ "$threads" = 1 ] && [ -z "$gpu" ] && clock=--cpu-clock
      for type in $WEIGHTS; do
        peer="exec env LD_LIBRARY_PATH=$libraries $step --model $work/$shape/model-$type.gguf"
        peer="$peer --threads $threads $clock $gpu --label $label"
        model=$work/$shape
        case $type in q*) model=$work/$shape/model-$type.gguf ;; esac
        for prompt in $PROMPTS; do
          name=$shape-$variant-$type-${threads}t-$prompt
          echo "== $name"
          # shellcheck disable=SC2086
          "$bench" decode --model "$model" --threads "$threads" $kernels $clock --quiet "$QUIET" \
            --branches "$BRANCHES" --prompt-length "$prompt" --output-length "$STEPS" \
            --trials "$TRIALS" --peer "$peer --branches ${BRANCHES##*,} --tokens $((prompt + 1024))" --json "$part"
          cat "$part" >> "$file"
        done
        for search in $SEARCHES; do
          name=$shape-$variant-$type-${threads}t-$search
          echo "== $name"
          # Wall clock on both sides. shellcheck disable=SC2086
          "$bench" "$search" --model "$model" --threads "$threads" $kernels --trials "$TRIALS" \
            --peer "$peer --branches 128 --tokens 16384" --json "$part"
          cat "$part" >> "$file"
        done
      done
    done
  done
done
