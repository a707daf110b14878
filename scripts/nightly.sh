#!/bin/sh
# What finds more the longer it runs, and is too long for .ci/run: random tests with 20 times the
# iterations, a branch of 100,000 tokens, hours of the fuzzers and of load on the server, planted bugs that they must find, all tests under each sanitizer, the
# quality of the shipped models, the Python package built from nothing and without a network, the server by
# all its clients, all of the CUDA build, folders of fewer bits as transformers reads them, and what benches say beside what
# they said before.
#
#   scripts/nightly.sh [PART...]      (default: all)
#   scripts/nightly.sh --list         their names
#
# `asan` is the leak detector, too (LeakSanitizer is a part of it). `quality` has what the shipped models solve
# and answer beside the thresholds of bench/thresholds.json, and perplexity, as it is and with fewer bits a weight, beside that
# of transformers; lm-eval on a shipped model is
# among the adapters' tests (python/tests/adapters/test_lm_eval.py), which `python` runs. `bench` compares ratios of
# times of one run, which hold on any machine, with those of the samples in bench/results/ (tools/bench_compare.py).
# `server` kills `dendrite serve` 200 times and loads it for SOAK_HOURS (default 2; scripts/soak.py says what for).
# SECONDS_EACH: how long each fuzzer runs (default 1800). SCALE: of the random tests (default 20).
# OUT: where results and programs that fail go (default build/nightly).
set -eu
cd "$(dirname "$0")/.."
parts="random long paths mutants fuzz server asan tsan quality bench python clients transformers cuda"
if [ "$*" = --list ]; then
  echo "$parts"
  exit 0
fi
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $parts
for what in "$@"; do # before anything runs
  case " $parts " in
    *" $what "*) ;;
    *)
      echo "nightly: got $what; expected parts of: $parts" >&2
      exit 2
      ;;
  esac
done
seconds=${SECONDS_EACH:-1800}
scale=${SCALE:-20}
out=${OUT:-build/nightly}
jobs=$(nproc)
seed=$(date +%Y%j)
# shellcheck source=scripts/env.sh
. scripts/env.sh

scripts/install_deps.sh tests
make build
mkdir -p "$out"

under() { # a sanitizer's preset: all tests
  mkdir -p "build-$1"
  cp -a build/bridge "build-$1/" # the Rust part is the same
  cmake --preset "$1" -DDENDRITE_BUILD_CLI=OFF -DDENDRITE_BUILD_EXAMPLES=OFF > /dev/null
  cmake --build --preset "$1" -j "$jobs"
  ctest --preset "$1" -j "$jobs"
}

python_from_nothing() { # as a user does, then from the source distribution without a network
  scripts/install_deps.sh python
  venv=$(realpath -m "$out/venv")
  rm -rf "$venv"
  python3 -m venv "$venv"
  before=$(date +%s)
  "$venv/bin/pip" install --quiet .
  echo "pip install .: $(($(date +%s) - before)) s"
  (cd / && "$venv/bin/python" -m dendrite solve 4 9 10 13)
  "$venv/bin/python" bench/python_overhead.py --check

  OUT=$out scripts/package.sh sdist
  "$venv/bin/pip" install --quiet -r python/tests/build.txt
  # A network namespace of its own has no routes; needs root, or a kernel that lets users have one.
  unshare --net --map-root-user "$venv/bin/pip" install --quiet --force-reinstall --no-deps \
    --no-index --no-build-isolation "$out"/dendrite_llm-*.tar.gz
  "$venv/bin/python" -c 'import dendrite'
}

for what in "$@"; do
  echo "== $what ($(date +%T))"
  case $what in
    random)
      cmake --build build -j "$jobs"
      for folder in engine kv sample search text; do
        DENDRITE_TEST_SCALE=$scale "build/tests/test_$folder" --gtest_brief=1
      done
      DENDRITE_KV_DEBUG=1 build/tests/test_engine --gtest_brief=1
      ;;
    long) # 100,000 tokens of a branch with recurrent layers, 200 turns
      cmake --build build -j "$jobs" --target test_engine
      DENDRITE_TEST_SCALE=67 build/tests/test_engine --gtest_filter='LongContext.*'
      ;;
    paths) scripts/test_paths.sh all ;;
    mutants)
      cmake --preset cpu -DDENDRITE_MUTANTS=ON > /dev/null
      cmake --build build -j "$jobs"
      ctest --preset cpu -j "$jobs" -R fuzz.mutant
      ;;
    fuzz)
      cmake --build build -j "$jobs"
      build/bin/dendrite-fuzz --seconds "$seconds" --seed "$seed" --save "$out/failed.program"
      build/bin/dendrite-fuzz --recurrent --seconds "$seconds" --seed "$seed" --save "$out/failed.program"
      build/bin/dendrite-fuzz --devices 0,0 --seconds "$seconds" --seed "$seed" --save "$out/failed.program"
      build/bin/dendrite-fuzz --experts --seconds "$seconds" --seed "$seed" --save "$out/failed.program"
      for family in smollm3 granite phi3 ministral3 glm4 olmo2 olmo3 gemma2 gemma3_text gemma4_text gemma4_experts glm4_moe deepseek_v3 gpt_oss llama4_text \
        lfm2 lfm2_moe lfm3 granite_hybrid granite_hybrid_moe nemotron_h kimi_linear; do
        build/bin/dendrite-fuzz --family "$family" --seconds $((seconds / 10)) --seed "$seed" --save "$out/failed.program"
      done
      for target in safetensors json_config index snapshot; do
        "build/bin/fuzz_$target" "tests/data/io/fuzz/$target" "$seconds"
      done
      build/bin/fuzz_chat_calls tests/data/chat/fuzz/calls "$seconds"
      for target in json http requests; do
        "build/bin/fuzz_server_$target" "tests/data/server/fuzz/$target" "$seconds"
      done
      (cd bridge && DENDRITE_TEST_SCALE=200 cargo test --release --locked --quiet \
        --target-dir ../build/bridge fuzz)
      ;;
    server) # 200 kills, and mixed load
      cmake --build build -j "$jobs" --target dendrite-cli
      python3 -B tests/server/crash_test.py build/bin/dendrite --kills 200 --seed "$seed"
      scripts/soak.py --hours "${SOAK_HOURS:-2}" --seed "$seed"
      ;;
    asan | tsan) under "$what" ;; # the first looks for leaks, too
    quality)
      models=$PWD/models
      build/bin/dendrite-bench game24 --search best-of-n:32,tot:1,tot:3 --json "$out/game24.jsonl"
      build/bin/dendrite-bench tool-calls --json "$out/tool-calls.jsonl"
      build/bin/dendrite-bench compose-quality --model "$models/dendrite-compose" --kv-tokens 16384 \
        --questions "$models/dendrite-compose/heldout.jsonl" --count 100 --classes Q1,Q2,Q3 --lefts prefix --firsts 32 --lasts 0 \
        --json "$out/compose-quality.jsonl"
      python3 tools/bench_compare.py thresholds "$out/game24.jsonl" "$out/tool-calls.jsonl" "$out/compose-quality.jsonl"
      bench/perplexity.py --check
      ;;
    bench)
      bench/nightly.sh build "$out/bench"
      python3 tools/bench_compare.py ratios "$out"/bench/*.jsonl
      ;;
    python)
      python_from_nothing
      python/tests/run.sh adapters
      ;;
    clients) # from registries, some 2 GB, with npm; and what llama-server makes of the same
      scripts/install_deps.sh python
      tests/server/clients/run.sh
      tests/server/clients/node/run.sh
      tests/server/clients/peers/run.sh > "$out/peers.md"
      ;;
    transformers) # from a registry, 5 GB
      scripts/install_deps.sh python
      python3 -m venv "$out/transformers"
      "$out/transformers/bin/pip" install --quiet -r tests/cli/transformers.txt
      "$out/transformers/bin/python" -B tests/cli/transformers_test.py build/bin/dendrite models
      ;;
    cuda) # compiles and links: every target and program, FlashInfer as a peer too
      scripts/install_cuda.sh
      mkdir -p build-cuda
      cp -a build/bridge build-cuda/
      cmake --preset cuda -DDENDRITE_WERROR=ON -DDENDRITE_BENCH_FLASHINFER=ON > /dev/null
      cmake --build --preset cuda -j "$jobs"
      ;;
  esac
done
