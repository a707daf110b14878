#!/bin/sh
# Our server beside vLLM's on one GPU, with random weights, and the library's own steps at the same work: raw samples as JSON.
#
#   bench/serve.sh BUILD_DIR OUT_DIR [PART...]     (default: all; the minutes are guesses for an H100)
#
#   library   the same in process: steps of branches that share 4096 tokens, and calls of branches that share nothing    2
#   shared    both servers in turns, prompts that begin with the same 4096 tokens; starting vLLM is 2 minutes of it      6
#   own       ... that share nothing                                                                                     6
#   both      these two, with one start of the servers                                                                   8
#   goals     what OUT_DIR has of these, with the goals
#
# Each part is a command of its own, for machines that are lent by the minute. Writes OUT_DIR/serve-SHAPE.jsonl and
# library-SHAPE.jsonl, a line a run (bench/results/README.md). Both servers are there at once, and asked in turns; the memory of
# the GPU is divided between them by VLLM_MEMORY and KV_TOKENS. Token ids in and out: no tokenizer on either side.
# Settings, by environment: SHAPE=8b  DEVICE=cuda  STREAMS=1,8,32,128  LENGTH=128  TRIALS=8  SHARED=4096  KV_TOKENS=131072
#   VLLM="python3 -m vllm.entrypoints.openai.api_server" ("" for none)  VLLM_MEMORY=0.45
#   PEER: another server in its place, NAME=COMMAND or NAME=URL (bench/serve/load.py)
#   VERSION: the commit of our sources, where they are without git
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=$1
out=$2
shift 2
[ $# -gt 0 ] || set -- library shared own goals
SHAPE=${SHAPE:-8b}
DEVICE=${DEVICE:-cuda}
STREAMS=${STREAMS:-1,8,32,128}
LENGTH=${LENGTH:-128}
TRIALS=${TRIALS:-8}
SHARED=${SHARED:-4096}
KV_TOKENS=${KV_TOKENS:-131072}
VLLM=${VLLM-python3 -m vllm.entrypoints.openai.api_server}
VLLM_MEMORY=${VLLM_MEMORY:-0.45}
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" VLLM_NO_USAGE_STATS="${VLLM_NO_USAGE_STATS:-1}" PYTHONDONTWRITEBYTECODE=1
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
own=128

library() { # BENCH OPTION ...
  bench_name=$1
  shift
  "$build/bin/dendrite-bench" "$bench_name" --shape "$SHAPE" --device "$DEVICE" --trials "$TRIALS" "$@" --json "$scratch/part"
  cat "$scratch/part" >> "$out/library-$SHAPE.jsonl"
}

servers() { # SHARED
  PYTHONPATH="$here/peers/vllm${PYTHONPATH:+:$PYTHONPATH}" python3 -c \
    "import pathlib, run; run.write_config('$SHAPE', pathlib.Path('$scratch'))"
  peer=${PEER:-}
  if [ -z "$peer" ] && [ -n "$VLLM" ]; then
    graphs='{"cudagraph_capture_sizes":[1,2,4,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128,160,192,256]}'
    peer="vllm=exec $VLLM --model $scratch --served-model-name random --load-format dummy --skip-tokenizer-init --port {port}"
    peer="$peer --enable-prefix-caching --max-model-len 8192 --max-num-seqs 256 --gpu-memory-utilization $VLLM_MEMORY"
    peer="$peer --generation-config vllm --disable-log-stats --disable-uvicorn-access-log --compilation-config '$graphs'"
  fi
  ours="dendrite=exec $build/bin/dendrite serve --model $scratch --load-format dummy --device $DEVICE --port 0"
  ours="$ours --kv-tokens $KV_TOKENS"
  set -- --shared "$1" --own "$own" --streams "$STREAMS" --length "$LENGTH" --trials "$TRIALS" --ids 1000,127000
  set -- "$@" --model "random-$SHAPE" --device "$DEVICE" --json "$out/serve-$SHAPE.jsonl" --server "$ours"
  [ -z "$peer" ] || set -- "$@" --server "$peer"
  [ -z "${VERSION:-}" ] || set -- "$@" --version "$VERSION"
  python3 "$here/serve/load.py" "$@"
}

for what in "$@"; do
  case $what in
    library)
      library decode --temperature 0.7 --branches "$STREAMS" --prompt-length "$SHARED" --own "$own" --output-length "$LENGTH"
      library agents --work callers --modes joined,one-call --callers "$STREAMS" --caller-prompt "$own" --caller-length "$LENGTH"
      ;;
    shared) servers "$SHARED" ;;
    own) servers 0 ;;
    both) servers "$SHARED,0" ;;
    goals) python3 "$here/serve/goals.py" "$out" ;;
    *)
      echo "serve: got $what; expected library, shared, own, both or goals" >&2
      exit 2
      ;;
  esac
done
