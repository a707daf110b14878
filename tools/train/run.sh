#!/usr/bin/env bash
# Builds the generator, trains, evaluates and writes the model folder: about eleven minutes on one H200.
#
#   tools/train/run.sh [OUT] [FOLDER]        OUT: work files, default /tmp/dendrite-24; FOLDER: default OUT/dendrite-24
#
# May be set: SECONDS_TO_TRAIN (490), SEED (24), PYTHON (python3), and TRAIN_FLAGS and EVALUATE_FLAGS, more flags for the
# two programs. Needs g++ and a Python with torch and safetensors. A trial of the script on a CPU:
#   TRAIN_FLAGS="--steps 2 --batch-rows 8" EVALUATE_FLAGS="--only judge --tasks countdown3" tools/train/run.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-/tmp/dendrite-24}
folder=${2:-$out/dendrite-24}
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
mkdir -p "$out"

echo "== build ($(date +%T))"
g++ -O3 -std=c++20 -pthread "$here/generate.cpp" -o "$out/generate"
"$out/generate" game24-heldout | diff - <(grep -v '^#' "$here/../../models/dendrite-24/game24_heldout.txt")

echo "== train ($(date +%T))"
"$python" "$here/train.py" --generator "$out/generate" --out "$out" \
  --seconds "${SECONDS_TO_TRAIN:-490}" --seed "${SEED:-24}" ${TRAIN_FLAGS:-} |
  tee "$out/train.log"

echo "== export ($(date +%T))"
"$python" "$here/export.py" "$out/model.pt" "$folder"

echo "== evaluate ($(date +%T))"
"$python" "$here/evaluate.py" "$folder" --generator "$out/generate" \
  --json "$out/evaluation.json" ${EVALUATE_FLAGS:-} | tee "$out/evaluate.log"
echo "== done ($(date +%T)): $folder"
